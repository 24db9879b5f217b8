#pragma once

#include <cstdint>

#include "cohort/nn/module.h"

namespace cohort::nn {

struct LinearOptions {
  bool bias = true;
  DType dtype = f32;
  Device device = Device::cpu();
};

// x [.., in_features] times weight^T plus bias -> [.., out_features]. weight [out, in] and bias
// [out] start uniform in +-1 / sqrt(in_features). ShapeError when the last size of x differs.
class Linear : public Layer {
 public:
  Linear(std::int64_t in_features, std::int64_t out_features, const LinearOptions& options = {});
  Tensor forward(const Tensor& x) override;
  void reset_parameters() override;

  Tensor weight;
  Tensor bias;  // undefined without

 private:
  std::int64_t in_features_;
};

// Merges the dimensions start_dim to end_dim: [N, C, H, W] -> [N, C * H * W].
class Flatten : public Layer {
 public:
  explicit Flatten(int start_dim = 1, int end_dim = -1)
      : start_dim_(start_dim), end_dim_(end_dim) {}
  Tensor forward(const Tensor& x) override;

 private:
  int start_dim_;
  int end_dim_;
};

}  // namespace cohort::nn
