#pragma once

#include <string>
#include <vector>

#include "cohort/optim/optimizer.h"

namespace cohort::optim {

struct SGDOptions {
  double lr = 1e-3;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;  // needs momentum and no dampening
  bool maximize = false;
};

// Stochastic gradient descent with momentum as PyTorch defines it: with g the gradient plus
// weight_decay * p, the buffer is b = g at first and b = momentum * b + (1 - dampening) * g later;
// p -= lr * b, or lr * (g + momentum * b) with Nesterov's. State: momentum_buffer, when momentum is
// not 0.
class SGD : public OptimizerOf<SGDOptions> {
 public:
  explicit SGD(const std::vector<Tensor>& params, const SGDOptions& options = {});
  explicit SGD(const std::vector<ParamGroup<SGDOptions>>& groups, const SGDOptions& defaults = {});

  bool element_wise() const override { return true; }

 protected:
  void validate(const SGDOptions& options) const override;
  std::vector<std::string> state_names(std::size_t group) const override;
  void update(std::size_t group, const Range& range, double grad_scale) override;
};

}  // namespace cohort::optim
