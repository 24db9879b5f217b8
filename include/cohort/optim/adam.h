#pragma once

#include <string>
#include <vector>

#include "cohort/optim/optimizer.h"

namespace cohort::optim {

struct Betas {
  double first = 0.9;
  double second = 0.999;
};

struct AdamOptions {
  double lr = 1e-3;
  Betas betas = {};
  double eps = 1e-8;
  double weight_decay = 0;  // added to the gradient
  bool amsgrad = false;
  bool maximize = false;
};

// Kingma, Ba: Adam: A Method for Stochastic Optimization, 2015; amsgrad: Reddi, Kale, Kumar, 2018.
// State: exp_avg, exp_avg_sq, and max_exp_avg_sq with amsgrad.
class Adam : public OptimizerOf<AdamOptions> {
 public:
  explicit Adam(const std::vector<Tensor>& params, const AdamOptions& options = {});
  explicit Adam(const std::vector<ParamGroup<AdamOptions>>& groups,
                const AdamOptions& defaults = {});

  bool element_wise() const override { return true; }

 protected:
  void validate(const AdamOptions& options) const override;
  std::vector<std::string> state_names(std::size_t group) const override;
  void update(std::size_t group, const Range& range, double grad_scale) override;
  bool keeps_zeros(std::size_t group) const override { return options(group).eps > 0; }
};

struct AdamWOptions {
  double lr = 1e-3;
  Betas betas = {};
  double eps = 1e-8;
  double weight_decay = 1e-2;  // parameters are scaled by 1 - lr * weight_decay
  bool amsgrad = false;
  bool maximize = false;
};

// Adam with decoupled weight decay (Loshchilov, Hutter, 2019). State as Adam's.
class AdamW : public OptimizerOf<AdamWOptions> {
 public:
  explicit AdamW(const std::vector<Tensor>& params, const AdamWOptions& options = {});
  explicit AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups,
                 const AdamWOptions& defaults = {});

  bool element_wise() const override { return true; }

 protected:
  void validate(const AdamWOptions& options) const override;
  std::vector<std::string> state_names(std::size_t group) const override;
  void update(std::size_t group, const Range& range, double grad_scale) override;
  bool keeps_zeros(std::size_t group) const override { return options(group).eps > 0; }
};

}  // namespace cohort::optim
