#include "cohort/core/dtype.h"

#include <ostream>

namespace cohort {

std::string_view name(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "f32";
    case DType::f64:
      return "f64";
    case DType::bf16:
      return "bf16";
    case DType::f16:
      return "f16";
    case DType::i32:
      return "i32";
    case DType::i64:
      return "i64";
    case DType::u8:
      return "u8";
    case DType::boolean:
      return "bool";
  }
  return "invalid dtype";
}

std::ostream& operator<<(std::ostream& out, DType dtype) {
  return out << name(dtype);
}

DType promote(DType a, DType b) {
  if (a == b) return a;
  if (is_floating(a) != is_floating(b)) return is_floating(a) ? a : b;
  if (is_floating(a)) {
    if (item_size(a) == item_size(b)) return DType::f32;  // bf16 with f16
    return item_size(a) > item_size(b) ? a : b;
  }
  if (a == DType::boolean) return b;
  if (b == DType::boolean) return a;
  return item_size(a) > item_size(b) ? a : b;
}

}  // namespace cohort
