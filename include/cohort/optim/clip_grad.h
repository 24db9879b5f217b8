#pragma once

#include <limits>
#include <vector>

#include "cohort/core/tensor.h"

namespace cohort::optim {

struct ClipGradNormOptions {
  // Positive, or infinity (the largest absolute value).
  double norm_type = 2;
  // Error, before any gradient is changed, when the norm is infinite or NaN. Otherwise such
  // gradients become NaN or zero, which the loss will show.
  bool error_if_nonfinite = false;
};

// Scales the gradients of `params` so that their norm, taken over all of them as one vector, is at
// most max_norm, and returns the norm they had. Parameters without a gradient are left out; without
// any the norm is 0. Waits for the device, once for all tensors. Powers are summed exactly
// (ops/reduce.h), so that the norm does not depend on how the parameters are cut up. Types other
// than 2 compute |x|^(p/2) in f64, piece by piece in 3 MiB, and add its squares; of f32 gradients
// nothing over- or underflows on the way up to p = 16.
double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm,
                       const ClipGradNormOptions& options = {});

// The two halves of it: the norm alone, and the scaling by a norm that is known.
double grad_norm(const std::vector<Tensor>& params, double norm_type = 2);
void clip_grads_with_norm_(const std::vector<Tensor>& params, double max_norm, double total_norm);

// A norm of gradients that are cut up, among ranks say: the part of each piece, a tensor of one
// size for all, and the norm of parts that were combined, by the maximum for type infinity and by
// sums else. Gradients may be missing.
Tensor norm_part(const std::vector<Tensor>& params, double norm_type);
double norm_of_parts(const Tensor& combined, double norm_type);
// InvalidArgument unless positive, or infinity.
void check_norm_type(double norm_type);

// Limits each element of the gradients to [-clip_value, clip_value].
void clip_grad_value_(const std::vector<Tensor>& params, double clip_value);

}  // namespace cohort::optim
