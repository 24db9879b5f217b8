#pragma once

// Checks of what operations are given.

#include "ops/op.h"

namespace cohort::op {

inline void check_floating(const char* operation, const Tensor& a) {
  check<DTypeError>(is_floating(a.dtype()), "[", operation, "] needs a floating tensor, got ",
                    a.dtype(), "; convert it with to(f32)");
}

// Whether `b` has a's device and dtype.
inline void check_alike(const char* operation, const Tensor& a, const Tensor& b) {
  check<DTypeError>(a.dtype() == b.dtype(), "[", operation, "] needs tensors of one dtype, got ",
                    a.dtype(), " and ", b.dtype(), "; convert one with to(dtype)");
  check(a.device() == b.device(), "[", operation, "] tensors on ", a.device(), " and ", b.device(),
        "; bring one over with to(device)");
}

// A view of a tensor that may be undefined; then one without data.
inline backend::View optional_view(const Tensor& tensor) {
  return tensor.defined() ? backend::View(tensor) : backend::View();
}

}  // namespace cohort::op
