#include "cohort/optim/clip_grad.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

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

// |x|^(p/2) of all elements, whose squares are to be added, in f64. A piece at a time, so that the
// temporaries stay small; exact sums do not depend on where it is cut.
void add_powers(const Tensor& gradient, double norm_type, Tensor& limbs) {
  constexpr std::int64_t kPiece = std::int64_t{1} << 17;
  const Tensor row = gradient.detach().contiguous();
  for (std::int64_t i = 0; i < row.numel(); i += kPiece) {
    const std::int64_t count = std::min(kPiece, row.numel() - i);
    const Tensor piece = row.as_strided({count}, {1}, row.storage_offset() + i);
    const Tensor magnitude = abs(piece.to(f64));
    const Tensor root = norm_type == 1 ? sqrt(magnitude) : pow(magnitude, norm_type / 2);
    add_(limbs, exact_square_sum({root}));
  }
}

// The largest absolute value, NaN where there is one.
Tensor largest_of(const std::vector<Tensor>& gradients) {
  // All are enqueued before the first one is waited for.
  const Device device = gradients.empty() ? Device::cpu() : gradients.front().device();
  Tensor largest = Tensor::zeros({}, {.dtype = f64, .device = device});
  for (const Tensor& gradient : gradients) {
    largest = maximum(largest, max(abs(gradient.detach())).to(f64));
  }
  return largest;
}

}  // namespace

void check_norm_type(double norm_type) {
  check(norm_type > 0, "[clip_grad_norm_] norm_type is ", norm_type,
        "; it must be positive, or infinity");
}

Tensor norm_part(const std::vector<Tensor>& params, double norm_type) {
  check_norm_type(norm_type);
  const NoGrad no_grad;
  const std::vector<Tensor> gradients = gradients_of(params);
  if (std::isinf(norm_type)) return largest_of(gradients);
  if (norm_type == 2 || gradients.empty()) return exact_square_sum(gradients);
  Tensor limbs = Tensor::zeros({kExactSumSize}, {i64, gradients.front().device(), false});
  for (const Tensor& gradient : gradients) add_powers(gradient, norm_type, limbs);
  return limbs;
}

double norm_of_parts(const Tensor& combined, double norm_type) {
  if (std::isinf(norm_type)) return combined.item();
  const double root = exact_sum_root(combined, f64).item();
  return norm_type == 2 ? root : std::pow(root, 2 / norm_type);
}

double grad_norm(const std::vector<Tensor>& params, double norm_type) {
  return norm_of_parts(norm_part(params, norm_type), norm_type);
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
