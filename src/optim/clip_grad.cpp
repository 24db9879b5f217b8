#include "cohort/optim/clip_grad.h"

#include <algorithm>
#include <cmath>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/reduce.h"

namespace cohort::optim {
namespace {

std::vector<Tensor> gradients_of(const std::vector<Tensor>& params) {
  std::vector<Tensor> gradients;
  for (const Tensor& param : params) {
    if (param.grad().defined() && param.numel() > 0) gradients.push_back(param.grad());
  }
  return gradients;
}

// Norm 1 or infinity of one tensor, still on its device.
Tensor norm_of(const Tensor& gradient, double norm_type) {
  const Tensor magnitudes = abs(gradient.to(gradient.dtype() == f64 ? f64 : f32));
  return norm_type == 1 ? sum(magnitudes) : max(magnitudes);
}

double norm_of_all(const std::vector<Tensor>& gradients, double norm_type) {
  check(norm_type == 1 || norm_type == 2 || norm_type == std::numeric_limits<double>::infinity(),
        "[clip_grad_norm_] norm_type is ", norm_type, "; 1, 2 and infinity are possible");
  if (gradients.empty()) return 0;
  if (norm_type == 2) return exact_sum_root(exact_square_sum(gradients), f64).item();
  // All norms are enqueued before the first one is waited for.
  std::vector<Tensor> norms;
  norms.reserve(gradients.size());
  for (const Tensor& gradient : gradients) norms.push_back(norm_of(gradient, norm_type));
  double total = 0;
  for (const Tensor& norm : norms) {
    const double value = norm.item();
    if (std::isnan(value)) return value;
    total = norm_type == 1 ? total + value : std::max(total, value);
  }
  return total;
}

}  // namespace

double grad_norm(const std::vector<Tensor>& params, double norm_type) {
  const NoGrad no_grad;
  return norm_of_all(gradients_of(params), norm_type);
}

void clip_grads_with_norm_(const std::vector<Tensor>& params, double max_norm, double total_norm) {
  check(max_norm >= 0, "[clip_grad_norm_] max_norm is ", max_norm, "; it cannot be negative");
  // PyTorch's guard against a division by zero.
  const double factor = max_norm / (total_norm + 1e-6);
  if (factor >= 1) return;
  const NoGrad no_grad;
  for (Tensor& gradient : gradients_of(params)) mul_(gradient, factor);
}

double clip_grad_norm_(const std::vector<Tensor>& params, double max_norm,
                       const ClipGradNormOptions& options) {
  const double total = grad_norm(params, options.norm_type);
  check<Error>(!options.error_if_nonfinite || std::isfinite(total),
               "[clip_grad_norm_] the norm of the gradients is ", total,
               "; the loss or the learning rate is too large, or the data have such values");
  clip_grads_with_norm_(params, max_norm, total);
  return total;
}

void clip_grad_value_(const std::vector<Tensor>& params, double clip_value) {
  check(clip_value >= 0, "[clip_grad_value_] clip_value is ", clip_value,
        "; it cannot be negative");
  const NoGrad no_grad;
  for (Tensor& gradient : gradients_of(params)) clamp_(gradient, -clip_value, clip_value);
}

}  // namespace cohort::optim
