#include "cohort/nn/linear.h"

#include "cohort/ops/matmul.h"
#include "cohort/ops/shape.h"
#include "nn/parameters.h"

namespace cohort::nn {

Linear::Linear(std::int64_t in_features, std::int64_t out_features, const LinearOptions& options)
    : in_features_(in_features) {
  check(in_features > 0 && out_features > 0, "[Linear] ", in_features, " -> ", out_features,
        ": both numbers of features must be positive");
  weight = register_parameter(
      "weight", empty_parameter({out_features, in_features}, options.dtype, options.device));
  bias = register_parameter(
      "bias",
      options.bias ? empty_parameter({out_features}, options.dtype, options.device) : Tensor());
  Linear::reset_parameters();
}

void Linear::reset_parameters() {
  reset_affine(weight, bias);
}

Tensor Linear::forward(const Tensor& x) {
  check<ShapeError>(x.rank() >= 1 && x.size(-1) == in_features_, "[Linear] expects [.., ",
                    in_features_, "], got ", x.shape(),
                    "; the last size must be the layer's in_features");
  return linear(x, weight, bias);
}

Tensor Flatten::forward(const Tensor& x) {
  return flatten(x, start_dim_, end_dim_);
}

}  // namespace cohort::nn
