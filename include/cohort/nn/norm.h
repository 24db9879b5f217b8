#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "cohort/nn/module.h"

namespace cohort {
class BatchParts;
}

namespace cohort::nn {

struct BatchNormLayerOptions {
  double eps = 1e-5;
  double momentum = 0.1;
  bool affine = true;
  bool track_running_stats = true;
  DType dtype = f32;
  Device device = Device::cpu();
};

// Normalises per channel (ops/norm.h): by the batch's statistics in training, by the running ones
// in evaluation (by the batch's too when they are not tracked). Buffers running_mean and
// running_var [C], num_batches_tracked (i64 scalar).
class BatchNorm : public Layer {
 public:
  Tensor forward(const Tensor& x) override;
  // Also sets the running statistics back.
  void reset_parameters() override;

  // The batch of a training forward is spread over `parts` (ops/batch_parts.h); null: it is all
  // here, which is so at first. Evaluation is not concerned.
  void set_batch_parts(std::shared_ptr<BatchParts> parts) { parts_ = std::move(parts); }
  const std::shared_ptr<BatchParts>& batch_parts() const { return parts_; }

  Tensor weight;  // undefined when not affine
  Tensor bias;
  Tensor running_mean;  // undefined when not tracked
  Tensor running_var;
  Tensor num_batches_tracked;

 protected:
  BatchNorm(const char* name, std::int64_t num_features, const BatchNormLayerOptions& options);
  virtual void check_input(const Tensor& x) const = 0;

  std::int64_t num_features_;

 private:
  BatchNormLayerOptions options_;
  std::shared_ptr<BatchParts> parts_;
};

// x [N, C] or [N, C, L].
class BatchNorm1d : public BatchNorm {
 public:
  explicit BatchNorm1d(std::int64_t num_features, const BatchNormLayerOptions& options = {})
      : BatchNorm("BatchNorm1d", num_features, options) {}

 protected:
  void check_input(const Tensor& x) const override;
};

// x [N, C, H, W].
class BatchNorm2d : public BatchNorm {
 public:
  explicit BatchNorm2d(std::int64_t num_features, const BatchNormLayerOptions& options = {})
      : BatchNorm("BatchNorm2d", num_features, options) {}

 protected:
  void check_input(const Tensor& x) const override;
};

struct LayerNormOptions {
  double eps = 1e-5;
  bool elementwise_affine = true;
  bool bias = true;
  DType dtype = f32;
  Device device = Device::cpu();
};

// Normalises over the last dimensions, `normalized_shape`.
class LayerNorm : public Layer {
 public:
  explicit LayerNorm(const Shape& normalized_shape, const LayerNormOptions& options = {});
  explicit LayerNorm(std::int64_t size, const LayerNormOptions& options = {})
      : LayerNorm(Shape{size}, options) {}
  Tensor forward(const Tensor& x) override;
  void reset_parameters() override;

  Tensor weight;  // undefined when not affine
  Tensor bias;

 private:
  Shape normalized_shape_;
  double eps_;
};

}  // namespace cohort::nn
