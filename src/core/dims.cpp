#include "cohort/core/dims.h"

#include <algorithm>
#include <ostream>

namespace cohort {

std::ostream& operator<<(std::ostream& out, const Dims& dims) {
  out << '[';
  for (int i = 0; i < dims.size(); ++i) out << (i == 0 ? "" : ", ") << dims[i];
  return out << ']';
}

Dims contiguous_strides(const Shape& shape) {
  Dims strides = Dims::filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i) {
    strides[i] = strides[i + 1] * std::max<std::int64_t>(shape[i + 1], 1);
  }
  return strides;
}

Shape broadcast_shapes(const Shape& a, const Shape& b) {
  Shape result = Dims::filled(std::max(a.size(), b.size()), 1);
  for (int i = 1; i <= result.size(); ++i) {
    const std::int64_t size_a = i <= a.size() ? a[a.size() - i] : 1;
    const std::int64_t size_b = i <= b.size() ? b[b.size() - i] : 1;
    if (size_a != size_b && size_a != 1 && size_b != 1) {
      throw ShapeError(str("[broadcast] shapes ", a, " and ", b,
                           " do not fit: counted from the right, sizes must be equal or 1"));
    }
    result[result.size() - i] = size_a == 1 ? size_b : size_a;
  }
  return result;
}

int normalize_dim(int dim, int rank) {
  const int result = dim < 0 ? dim + rank : dim;
  if (result < 0 || result >= rank) {
    throw InvalidArgument(
        str("[dim] dimension ", dim, " is out of range for a tensor with ", rank, " dimensions"));
  }
  return result;
}

}  // namespace cohort
