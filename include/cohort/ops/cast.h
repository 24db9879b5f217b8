#pragma once

#include "cohort/core/tensor.h"

namespace cohort {

// `a` as `dtype`, or on `device`; `a` itself when nothing changes. Rounds to nearest even; floating
// to integral truncates. The gradient is cast or copied back.
Tensor to(const Tensor& a, DType dtype);
Tensor to(const Tensor& a, Device device);

}  // namespace cohort
