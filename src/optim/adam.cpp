#include "cohort/optim/adam.h"

#include <cmath>
#include <string_view>

#include "backend/backend.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"

namespace cohort::optim {
namespace {

// Adam's and AdamW's options differ in their defaults and in what weight_decay means.
template <typename Options>
void validate_adam(std::string_view name, const Options& o) {
  check(o.lr >= 0, "[", name, "] lr is ", o.lr, "; it cannot be negative");
  check(o.eps >= 0, "[", name, "] eps is ", o.eps, "; it cannot be negative");
  check(o.weight_decay >= 0, "[", name, "] weight_decay is ", o.weight_decay,
        "; it cannot be negative");
  for (const double beta : {o.betas.first, o.betas.second}) {
    check(beta >= 0 && beta < 1, "[", name, "] a beta is ", beta, "; it must lie in [0, 1)");
  }
}

std::vector<std::string> adam_state_names(bool amsgrad) {
  if (amsgrad) return {"exp_avg", "exp_avg_sq", "max_exp_avg_sq"};
  return {"exp_avg", "exp_avg_sq"};
}

template <typename Options>
backend::AdamParams kernel_params(const Options& o, std::int64_t step, double grad_scale) {
  backend::AdamParams params;
  params.lr = o.lr;
  params.beta1 = o.betas.first;
  params.beta2 = o.betas.second;
  params.eps = o.eps;
  params.weight_decay = o.weight_decay;
  params.bias_correction1 = 1 - std::pow(o.betas.first, static_cast<double>(step));
  params.bias_correction2 = 1 - std::pow(o.betas.second, static_cast<double>(step));
  params.maximize = o.maximize;
  params.grad_scale = grad_scale;
  return params;
}

void run(const Tensor& param, const Tensor& grad, const std::vector<Tensor>& state,
         const backend::AdamParams& params) {
  const Device device = param.device();
  backend::backend_for(device.type)
      .optim()
      .adam(Context::current().stream(device), param, grad, state[0], state[1],
            state.size() > 2 ? backend::View(state[2]) : backend::View(), params);
}

}  // namespace

Adam::Adam(const std::vector<Tensor>& params, const AdamOptions& options)
    : Adam(std::vector<ParamGroup<AdamOptions>>{{params}}, options) {}

Adam::Adam(const std::vector<ParamGroup<AdamOptions>>& groups, const AdamOptions& defaults)
    : OptimizerOf(defaults) {
  for (const auto& group : groups) Adam::add_param_group(group);
}

void Adam::validate(const AdamOptions& options) const {
  validate_adam("Adam", options);
}

std::vector<std::string> Adam::state_names(std::size_t group) const {
  return adam_state_names(options(group).amsgrad);
}

void Adam::update(std::size_t group, const Range& range, double grad_scale) {
  run(range.param, range.grad, range.state,
      kernel_params(options(group), range.step_count, grad_scale));
}

AdamW::AdamW(const std::vector<Tensor>& params, const AdamWOptions& options)
    : AdamW(std::vector<ParamGroup<AdamWOptions>>{{params}}, options) {}

AdamW::AdamW(const std::vector<ParamGroup<AdamWOptions>>& groups, const AdamWOptions& defaults)
    : OptimizerOf(defaults) {
  for (const auto& group : groups) AdamW::add_param_group(group);
}

void AdamW::validate(const AdamWOptions& options) const {
  validate_adam("AdamW", options);
}

std::vector<std::string> AdamW::state_names(std::size_t group) const {
  return adam_state_names(options(group).amsgrad);
}

void AdamW::update(std::size_t group, const Range& range, double grad_scale) {
  backend::AdamParams params = kernel_params(options(group), range.step_count, grad_scale);
  params.decoupled = true;
  run(range.param, range.grad, range.state, params);
}

}  // namespace cohort::optim
