// Printing of tensors.

#include <ostream>

#include "cohort/core/tensor.h"

namespace cohort {
namespace {

// Of each dimension at most this many values are shown, half at either end.
constexpr std::int64_t kShown = 8;

void print_values(std::ostream& out, const std::vector<double>& values, const Shape& shape, int dim,
                  std::int64_t first) {
  if (dim == shape.size()) {
    out << values[static_cast<std::size_t>(first)];
    return;
  }
  std::int64_t step = 1;
  for (int i = dim + 1; i < shape.size(); ++i) step *= shape[i];
  out << '[';
  for (std::int64_t i = 0; i < shape[dim]; ++i) {
    if (i > 0) out << (dim + 1 == shape.size() ? ", " : ",\n ");
    if (shape[dim] > kShown && i == kShown / 2) {
      out << "... ";
      i = shape[dim] - kShown / 2;
    }
    print_values(out, values, shape, dim + 1, first + i * step);
  }
  out << ']';
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const Tensor& tensor) {
  if (!tensor.defined()) return out << "Tensor(undefined)";
  out << "Tensor(";
  if (tensor.device().type != DeviceType::meta && tensor.storage().has_memory()) {
    print_values(out, tensor.to_vector<double>(), tensor.shape(), 0, 0);
    out << ", ";
  }
  return out << tensor.dtype() << tensor.shape() << " on " << tensor.device() << ')';
}

}  // namespace cohort
