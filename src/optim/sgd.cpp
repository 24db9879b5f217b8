#include "cohort/optim/sgd.h"

#include "backend/backend.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"

namespace cohort::optim {

SGD::SGD(const std::vector<Tensor>& params, const SGDOptions& options)
    : SGD(std::vector<ParamGroup<SGDOptions>>{{params}}, options) {}

SGD::SGD(const std::vector<ParamGroup<SGDOptions>>& groups, const SGDOptions& defaults)
    : OptimizerOf(defaults) {
  for (const auto& group : groups) SGD::add_param_group(group);
}

void SGD::validate(const SGDOptions& o) const {
  check(o.lr >= 0, "[SGD] lr is ", o.lr, "; it cannot be negative");
  check(o.momentum >= 0, "[SGD] momentum is ", o.momentum, "; it cannot be negative");
  check(o.weight_decay >= 0, "[SGD] weight_decay is ", o.weight_decay, "; it cannot be negative");
  check(!o.nesterov || (o.momentum > 0 && o.dampening == 0),
        "[SGD] nesterov needs momentum and no dampening; momentum is ", o.momentum, ", dampening ",
        o.dampening);
}

std::vector<std::string> SGD::state_names(std::size_t group) const {
  if (options(group).momentum == 0) return {};
  return {"momentum_buffer"};
}

void SGD::update(std::size_t group, const Range& range, double grad_scale) {
  const SGDOptions& o = options(group);
  const Device device = range.param.device();
  backend::SgdParams params;
  params.lr = o.lr;
  params.momentum = o.momentum;
  params.dampening = o.dampening;
  params.weight_decay = o.weight_decay;
  params.nesterov = o.nesterov;
  params.maximize = o.maximize;
  params.first_step = range.step_count == 1;
  params.grad_scale = grad_scale;
  backend::backend_for(device.type)
      .optim()
      .sgd(Context::current().stream(device), range.param, range.grad,
           range.state.empty() ? backend::View() : backend::View(range.state[0]), params);
}

}  // namespace cohort::optim
