// States of optimizers over sharded parameters.

#include <algorithm>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/agreement.h"
#include "parallel/fsdp_runtime.h"
#include "parallel/fsdp_together.h"
#include "parallel/optim_state.h"

namespace cohort::parallel {
namespace {

std::vector<OptimizedParameter> checked_parameters(FSDPRuntime& runtime, const std::string& what,
                                                   const optim::Optimizer& optimizer) {
  check<NotSupported>(optimizer.element_wise(), "[", what,
                      "] the optimizer is not element-wise; it cannot update shards");
  return optimized_parameters(runtime.module(), optimizer, StatePlaces(runtime));
}

// The call, and the optimizer as it must be on all ranks.
void agree_on(comm::ProcessGroup& group, const std::string& what, bool rank0_only,
              const optim::Optimizer& optimizer,
              const std::vector<OptimizedParameter>& parameters) {
  std::vector<std::string> lines{call_text(what, rank0_only)};
  for (const auto& [name, tensor, place, index] : parameters) {
    std::string line = str("parameter ", name, " of group ", index, " with state");
    for (const std::string& state : optimizer.state_names_of(tensor)) line += " " + state;
    lines.push_back(std::move(line));
  }
  require_agreement(group, "[" + what + "] optimizers", lines);
}

// Steps that each parameter has taken, from a rank that has elements of it. Collective.
std::vector<std::int64_t> common_steps(comm::ProcessGroup& group, const std::string& what,
                                       const optim::Optimizer& optimizer,
                                       const std::vector<OptimizedParameter>& parameters) {
  std::vector<std::int64_t> own;
  for (const auto& [name, tensor, place, index] : parameters) {
    const bool counts = place.flat != nullptr && place.part.size() > 0;
    own.push_back(counts ? optimizer.step_count(tensor) : 0);
  }
  std::vector<std::int64_t> steps = own;
  if (group.size() > 1 && !own.empty()) {
    const Tensor most = Tensor::from(own, {static_cast<std::int64_t>(own.size())});
    group.all_reduce(most, comm::ReduceOp::max, {.owner = what}).synchronize();
    steps = most.to_vector<std::int64_t>();
  }
  std::string wrong;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor, place, index] = parameters[i];
    if (place.flat == nullptr) {
      steps[i] = optimizer.step_count(tensor);
    } else if (place.part.size() > 0 && own[i] != steps[i]) {
      wrong += str("; '", name, "' has taken ", own[i], " steps here and ", steps[i], " elsewhere");
    }
  }
  require_all_ready(group, "[" + what + "] the ranks' optimizers have parted", wrong);
  return steps;
}

// The state of all ranks' parts of one parameter.
void gather_state(FSDPRuntime& runtime, const optim::Optimizer& optimizer,
                  const OptimizedParameter& parameter, bool rank0_only,
                  std::vector<optim::NamedState>& into) {
  const bool wanted = !rank0_only || runtime.group()->rank() == 0;
  const StatePlace& place = parameter.place;
  const std::vector<optim::NamedState> own = optimizer.state(parameter.tensor);
  const std::vector<std::string> names = optimizer.state_names_of(parameter.tensor);
  for (std::size_t k = 0; k < names.size(); ++k) {
    if (place.flat == nullptr) {
      if (wanted) into.push_back({names[k], own[k].tensor.clone().to(Device::cpu())});
    } else if (gathers(place, rank0_only)) {
      const Tensor row =
          place.part.size() > 0 ? own[k].tensor : Tensor::empty({0}, place.flat->shard().options());
      Tensor whole = gather_whole(*place.flat, place.index, row, !rank0_only);
      if (wanted) into.push_back({names[k], std::move(whole)});
    }
  }
}

// Gives all ranks what rank 0 has read of a state besides its tensors. Collective.
void broadcast_facts(comm::ProcessGroup& group, const std::string& what, OptimLoad& load,
                     std::size_t groups) {
  load.steps.resize(std::max<std::size_t>(load.steps.size(), 1));  // never empty
  load.rates.resize(groups);
  const Tensor steps = Tensor::from(load.steps, {static_cast<std::int64_t>(load.steps.size())});
  const Tensor rates = Tensor::from(load.rates, {static_cast<std::int64_t>(load.rates.size())});
  group.broadcast(steps, 0, {.owner = what}).synchronize();
  group.broadcast(rates, 0, {.owner = what}).synchronize();
  load.steps = steps.to_vector<std::int64_t>();
  load.rates = rates.to_vector<double>();
}

void load_states(FSDPRuntime& runtime, const std::string& what, optim::Optimizer& optimizer,
                 std::span<const OptimState> states, bool may_broadcast) {
  runtime.require_rest(what);
  const NoGrad no_grad;
  comm::ProcessGroup& group = *runtime.group();
  const auto parameters = checked_parameters(runtime, what, optimizer);
  agree_on(group, what, false, optimizer, parameters);
  const bool brings =
      !states.empty() && !(states.front().parameters.empty() && states.front().groups.empty());
  const bool from_rank0 = may_broadcast && rank0_alone_brings(group, brings, what);
  OptimLoad load;
  if (!from_rank0 || group.rank() == 0) {
    load = read_optim_states(optimizer, parameters, states, from_rank0);
  }
  require_all_ready(group, "[" + what + "] the state does not fit", load.wrong);
  runtime.reshard_all();
  run_together(runtime, what, [&] {
    if (from_rank0) {
      load.steps.resize(parameters.size());
      broadcast_facts(group, what, load, optimizer.group_count());
    }
    const std::vector<StateTarget> targets =
        prepare_optimizer(optimizer, parameters, load.steps, load.rates);
    if (from_rank0) {
      fill_from_rank0(group, load.pieces, targets);
    } else {
      for (const StateTarget& target : targets) load.pieces.fill(target);
    }
  });
}

}  // namespace

OptimState FSDPEngine::full_optim_state(const optim::Optimizer& optimizer, bool rank0_only) {
  const std::string what = "full_optim_state";
  runtime_->require_rest(what);
  const NoGrad no_grad;
  const MemoryCategoryScope category(MemoryCategory::other);
  comm::ProcessGroup& group = *runtime_->group();
  const auto parameters = checked_parameters(*runtime_, what, optimizer);
  agree_on(group, what, rank0_only, optimizer, parameters);
  const std::vector<std::int64_t> steps = common_steps(group, what, optimizer, parameters);
  OptimState result{.parameters = {}, .groups = optim_groups(optimizer, parameters)};
  run_together(*runtime_, what, [&] {
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const StatePlace& place = parameters[i].place;
      OptimState::Parameter& entry = result.parameters.emplace_back();
      entry = {parameters[i].name, place.shape, 0, place.shape.product(), 0, steps[i], {}};
      if (steps[i] > 0) {
        gather_state(*runtime_, optimizer, parameters[i], rank0_only, entry.state);
      }
    }
  });
  return rank0_only && group.rank() != 0 ? OptimState() : result;
}

OptimState FSDPEngine::sharded_optim_state(const optim::Optimizer& optimizer) const {
  return local_optim_state(optimizer,
                           checked_parameters(*runtime_, "sharded_optim_state", optimizer));
}

void FSDPEngine::load_full_optim_state(optim::Optimizer& optimizer, const OptimState& state) {
  load_states(*runtime_, "load_full_optim_state", optimizer, std::span(&state, 1), true);
}

void FSDPEngine::load_sharded_optim_state(optim::Optimizer& optimizer,
                                          std::span<const OptimState> states) {
  load_states(*runtime_, "load_sharded_optim_state", optimizer, states, false);
}

}  // namespace cohort::parallel
