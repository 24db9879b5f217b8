#pragma once

#include "cohort/core/dtype.h"

namespace cohort::backend::cpu {

// Calls fn(T{}) with the C++ type of a floating dtype.
template <typename F>
inline void dispatch_floating(DType dtype, F&& fn) {
  switch (dtype) {
    case DType::f64:
      return fn(double{});
    case DType::bf16:
      return fn(BFloat16{});
    case DType::f16:
      return fn(Float16{});
    default:
      return fn(float{});
  }
}

}  // namespace cohort::backend::cpu
