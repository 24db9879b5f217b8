#pragma once

#include "cohort/core/error.h"
#include "cohort/nn/module.h"
#include "cohort/ops/dropout.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/softmax.h"

// Layers without parameters that keep the shape of their input.
namespace cohort::nn {

class ReLU : public Layer {
 public:
  Tensor forward(const Tensor& x) override { return relu(x); }
};

struct GELUOptions {
  GeluApproximate approximate = GeluApproximate::none;
};

class GELU : public Layer {
 public:
  explicit GELU(const GELUOptions& options = {}) : options_(options) {}
  Tensor forward(const Tensor& x) override { return gelu(x, options_.approximate); }

 private:
  GELUOptions options_;
};

class SiLU : public Layer {
 public:
  Tensor forward(const Tensor& x) override { return silu(x); }
};

class Tanh : public Layer {
 public:
  Tensor forward(const Tensor& x) override { return tanh(x); }
};

class Sigmoid : public Layer {
 public:
  Tensor forward(const Tensor& x) override { return sigmoid(x); }
};

class Softmax : public Layer {
 public:
  explicit Softmax(int dim = -1) : dim_(dim) {}
  Tensor forward(const Tensor& x) override { return softmax(x, dim_); }

 private:
  int dim_;
};

// In training, zeroes each element with probability p and divides the others by 1 - p. The numbers
// come from the context's generator, which differs by rank.
class Dropout : public Layer {
 public:
  explicit Dropout(double p = 0.5) : p_(p) {
    check(p >= 0 && p <= 1, "[Dropout] p is ", p, "; it is a probability, in [0, 1]");
  }
  Tensor forward(const Tensor& x) override { return dropout(x, p_, is_training()); }

 private:
  double p_;
};

}  // namespace cohort::nn
