#pragma once

#include <limits>
#include <vector>

#include "cohort/core/tensor.h"

namespace cohort::optim {

struct ClipGradNormOptions {
  // 1, 2, or infinity (the largest absolute value).
  double norm_type = 2;
  // Error, before any gradient is changed, when the norm is infinite or NaN. Otherwise such
  // gradients become NaN or zero, which the loss will show.
  bool error_if_nonfinite = false;
};

// Scales the gradients of `params` so that their norm, taken over all of them as one vector, is at
// most max_norm, and returns the norm they had. Parameters without a gradient are left out; without
// any the norm is 0. Waits for the device, once for all tensors. Each tensor's norm is computed in
// f32 (f64 for f64), the norm of the norms in f64 in the order of `params`.
double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm,
                       const ClipGradNormOptions& options = {});

// The norm alone.
double grad_norm(const std::vector<Tensor>& params, double norm_type = 2);

// Limits each element of the gradients to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<Tensor>& params, double clip_value);

}  // namespace cohort::optim
