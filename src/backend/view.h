#pragma once

#include <cstdint>

#include "cohort/core/dims.h"
#include "cohort/core/dtype.h"
#include "cohort/core/tensor.h"

namespace cohort::backend {

// A tensor as a kernel sees it: an address, a shape and strides in elements. Copied into the
// enqueued work; the address is taken when the kernel is called.
struct View {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Dims strides;
  std::int64_t numel = 0;
  bool contiguous = true;

  View() = default;
  View(const Tensor& tensor)  // NOLINT(google-explicit-constructor)
      : data(tensor.raw()),
        dtype(tensor.dtype()),
        shape(tensor.shape()),
        strides(tensor.strides()),
        numel(tensor.numel()),
        contiguous(tensor.is_contiguous()) {}

  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
};

// `tensor` stretched to `shape` with stride 0 along repeated dimensions; shapes must be compatible.
View broadcast_view(const Tensor& tensor, const Shape& shape);

}  // namespace cohort::backend
