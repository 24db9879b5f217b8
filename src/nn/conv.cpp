#include "cohort/nn/conv.h"

#include "nn/parameters.h"

namespace cohort::nn {

Conv2d::Conv2d(std::int64_t in_channels, std::int64_t out_channels, Pair kernel_size,
               const Conv2dLayerOptions& options)
    : in_channels_(in_channels),
      options_{options.stride, options.padding, options.dilation, options.groups} {
  check(in_channels > 0 && out_channels > 0 && kernel_size.h > 0 && kernel_size.w > 0, "[Conv2d] ",
        in_channels, " -> ", out_channels, " channels with a kernel of ", kernel_size.h, " x ",
        kernel_size.w, ": all must be positive");
  check(
      options.groups > 0 && in_channels % options.groups == 0 && out_channels % options.groups == 0,
      "[Conv2d] ", options.groups, " groups do not divide ", in_channels, " -> ", out_channels,
      " channels");
  weight = register_parameter("weight", empty_parameter({out_channels, in_channels / options.groups,
                                                         kernel_size.h, kernel_size.w},
                                                        options.dtype, options.device));
  bias = register_parameter(
      "bias",
      options.bias ? empty_parameter({out_channels}, options.dtype, options.device) : Tensor());
  Conv2d::reset_parameters();
}

void Conv2d::reset_parameters() {
  reset_affine(weight, bias);
}

Tensor Conv2d::forward(const Tensor& x) {
  check<ShapeError>(x.rank() == 4 && x.size(1) == in_channels_, "[Conv2d] expects [N, ",
                    in_channels_, ", H, W], got ", x.shape());
  return conv2d(x, weight, bias, options_);
}

}  // namespace cohort::nn
