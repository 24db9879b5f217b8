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
// any the norm is 0. Waits for the device, once for all tensors. Squares are summed exactly
// (ops/reduce.h), so that the 2-norm does not depend on how the parameters are cut up.
double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm,
                       const ClipGradNormOptions& options = {});

// The two halves of it: the norm alone, and the scaling by a norm that is known.
double grad_norm(const std::vector<Tensor>& params, double norm_type = 2);
void clip_grads_with_norm_(const std::vector<Tensor>& params, double max_norm, double total_norm);

// Limits each element of the gradients to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<Tensor>& params, double clip_value);

}  // namespace cohort::optim
