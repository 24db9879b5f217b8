#pragma once

#include <cmath>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"
#include "cohort/nn/init.h"

namespace cohort::nn {

// Uninitialised memory for a parameter or buffer, counted as such.
inline Tensor empty_parameter(const Shape& shape, DType dtype, Device device) {
  const MemoryCategoryScope scope(MemoryCategory::parameters);
  return Tensor::empty(shape, {.dtype = dtype, .device = device});
}

inline Tensor filled_buffer(const Shape& shape, double value, DType dtype, Device device) {
  const MemoryCategoryScope scope(MemoryCategory::parameters);
  return Tensor::full(shape, value, {.dtype = dtype, .device = device});
}

// The start of linear and convolution layers: LeCun's uniform distribution, which Kaiming's with
// a = sqrt(5) comes to: +-1 / sqrt(fan_in) for the weight, and the same for the bias.
inline void reset_affine(const Tensor& weight, const Tensor& bias) {
  if (weight.numel() == 0) return;
  init::kaiming_uniform_(weight, {.a = std::sqrt(5.0)});
  if (!bias.defined()) return;
  const double bound = 1 / std::sqrt(static_cast<double>(init::fans_of(weight).in));
  init::uniform_(bias, -bound, bound);
}

}  // namespace cohort::nn
