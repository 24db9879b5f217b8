#pragma once

#include <cstdint>

#include "cohort/nn/module.h"
#include "cohort/ops/conv.h"

namespace cohort::nn {

struct Conv2dLayerOptions {
  Pair stride = 1;
  Pair padding = 0;
  Pair dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
  DType dtype = f32;
  Device device = Device::cpu();
};

// x [N, in_channels, H, W] -> [N, out_channels, oH, oW] (sizes: ops/conv.h). weight
// [out, in / groups, kH, kW] and bias [out] start uniform in +-1 / sqrt(in / groups * kH * kW).
class Conv2d : public Layer {
 public:
  Conv2d(std::int64_t in_channels, std::int64_t out_channels, Pair kernel_size,
         const Conv2dLayerOptions& options = {});
  Tensor forward(const Tensor& x) override;
  void reset_parameters() override;

  Tensor weight;
  Tensor bias;  // undefined without

 private:
  std::int64_t in_channels_;
  Conv2dOptions options_;
};

struct PoolOptions {
  Pair stride = 0;  // 0: the kernel's size
  Pair padding = 0;
};

// x [N, C, H, W]: the largest element of each window.
class MaxPool2d : public Layer {
 public:
  explicit MaxPool2d(Pair kernel_size, const PoolOptions& options = {})
      : options_{kernel_size, options.stride, options.padding} {}
  Tensor forward(const Tensor& x) override { return max_pool2d(x, options_); }

 private:
  Pool2dOptions options_;
};

// x [N, C, H, W]: the mean of each window, padded places counted as zeros.
class AvgPool2d : public Layer {
 public:
  explicit AvgPool2d(Pair kernel_size, const PoolOptions& options = {})
      : options_{kernel_size, options.stride, options.padding} {}
  Tensor forward(const Tensor& x) override { return avg_pool2d(x, options_); }

 private:
  Pool2dOptions options_;
};

}  // namespace cohort::nn
