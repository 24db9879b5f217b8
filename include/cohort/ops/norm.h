#pragma once

#include "cohort/core/tensor.h"

namespace cohort {

struct BatchNormOptions {
  bool training = true;
  double momentum = 0.1;
  double eps = 1e-5;
};

// x [N, C] or [N, C, H, W], normalised per channel. Training: by the batch's mean and (biased)
// variance, and the running statistics, where defined, move towards them by `momentum` (with the
// unbiased variance); InvalidArgument for one value per channel. Else by the running statistics.
// weight, bias: [C] or both undefined.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                  Tensor running_var, const BatchNormOptions& options = {});

// Normalises over the last dimensions, which are weight's shape; statistics in f32 (f64 for f64).
// weight and bias may be undefined; then `normalized_shape` says what is normalised.
Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight = {},
                  const Tensor& bias = {}, double eps = 1e-5);

}  // namespace cohort
