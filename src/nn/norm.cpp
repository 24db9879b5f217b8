#include "cohort/nn/norm.h"

#include "cohort/autograd/autograd.h"
#include "cohort/ops/batch_parts.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/shape.h"
#include "nn/parameters.h"

namespace cohort::nn {

BatchNorm::BatchNorm(const char* name, std::int64_t num_features,
                     const BatchNormLayerOptions& options)
    : num_features_(num_features), options_(options) {
  check(num_features > 0, "[", name, "] num_features is ", num_features, "; it must be positive");
  check(options.momentum >= 0 && options.momentum <= 1, "[", name, "] momentum is ",
        options.momentum, "; it must lie in [0, 1]");
  const auto per_channel = [&](bool wanted) {
    return wanted ? empty_parameter({num_features}, options.dtype, options.device) : Tensor();
  };
  weight = register_parameter("weight", per_channel(options.affine));
  bias = register_parameter("bias", per_channel(options.affine));
  running_mean = register_buffer("running_mean", per_channel(options.track_running_stats));
  running_var = register_buffer("running_var", per_channel(options.track_running_stats));
  num_batches_tracked = register_buffer(
      "num_batches_tracked",
      options.track_running_stats ? filled_buffer({}, 0, i64, options.device) : Tensor());
  BatchNorm::reset_parameters();
}

void BatchNorm::reset_parameters() {
  if (options_.affine) {
    init::ones_(weight);
    init::zeros_(bias);
  }
  if (options_.track_running_stats) {
    init::zeros_(running_mean);
    init::ones_(running_var);
    init::zeros_(num_batches_tracked);
  }
}

Tensor BatchNorm::forward(const Tensor& x) {
  check_input(x);
  const bool by_batch = is_training() || !options_.track_running_stats;
  if (is_training() && options_.track_running_stats) {
    const NoGrad no_grad;
    add_(num_batches_tracked, Tensor::ones({}, num_batches_tracked.options()));
  }
  const BatchNormOptions options{by_batch, options_.momentum, options_.eps};
  const auto parts = is_training() ? parts_ : nullptr;
  if (x.rank() != 3) return batch_norm(x, weight, bias, running_mean, running_var, options, parts);
  // [N, C, L] is an image of width one to the operation.
  return squeeze(
      batch_norm(unsqueeze(x, 3), weight, bias, running_mean, running_var, options, parts), 3);
}

void BatchNorm1d::check_input(const Tensor& x) const {
  check<ShapeError>((x.rank() == 2 || x.rank() == 3) && x.size(1) == num_features_,
                    "[BatchNorm1d] expects [N, ", num_features_, "] or [N, ", num_features_,
                    ", L], got ", x.shape());
}

void BatchNorm2d::check_input(const Tensor& x) const {
  check<ShapeError>(x.rank() == 4 && x.size(1) == num_features_, "[BatchNorm2d] expects [N, ",
                    num_features_, ", H, W], got ", x.shape());
}

LayerNorm::LayerNorm(const Shape& normalized_shape, const LayerNormOptions& options)
    : normalized_shape_(normalized_shape), eps_(options.eps) {
  check<ShapeError>(!normalized_shape.empty() && normalized_shape.product() > 0,
                    "[LayerNorm] normalized_shape is ", normalized_shape,
                    "; it needs at least one size, all positive");
  const auto affine = [&](bool wanted) {
    return wanted ? empty_parameter(normalized_shape, options.dtype, options.device) : Tensor();
  };
  weight = register_parameter("weight", affine(options.elementwise_affine));
  bias = register_parameter("bias", affine(options.elementwise_affine && options.bias));
  LayerNorm::reset_parameters();
}

void LayerNorm::reset_parameters() {
  if (weight.defined()) init::ones_(weight);
  if (bias.defined()) init::zeros_(bias);
}

Tensor LayerNorm::forward(const Tensor& x) {
  const int first = x.rank() - normalized_shape_.size();
  bool fits = first >= 0;
  for (int i = 0; fits && i < normalized_shape_.size(); ++i) {
    fits = x.size(first + i) == normalized_shape_[i];
  }
  check<ShapeError>(fits, "[LayerNorm] expects the last sizes to be ", normalized_shape_, ", got ",
                    x.shape());
  return layer_norm(x, normalized_shape_, weight, bias, eps_);
}

}  // namespace cohort::nn
