// States out of their parts, and of modules that are not sharded.

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"
#include "cohort/parallel/fsdp_state.h"
#include "parallel/optim_state.h"
#include "parallel/state_pieces.h"
#include "parallel/state_places.h"

namespace cohort {

using parallel::StatePieces;
using parallel::StateTarget;

std::vector<nn::NamedTensor> assemble_full_state(std::span<const ShardedState> states) {
  const NoGrad no_grad;
  std::vector<nn::NamedTensor> result;
  for (const StateTarget& target :
       parallel::fill_whole("assemble_full_state", StatePieces(states))) {
    result.push_back({target.name, target.tensor});
  }
  return result;
}

void load_full_state(nn::Module& module, const std::vector<nn::NamedTensor>& state) {
  const NoGrad no_grad;
  const StatePieces pieces(state);
  const std::vector<StateTarget> targets = parallel::state_targets(module, {});
  const std::string wrong = pieces.problems(targets);
  check(wrong.empty(), "[load_full_state] the state does not fit", wrong);
  for (const StateTarget& target : targets) pieces.fill(target);
}

OptimState full_optim_state(const nn::Module& module, const optim::Optimizer& optimizer) {
  check<NotSupported>(optimizer.has_all_state(),
                      "[full_optim_state] this rank has the state of a part of the parameters "
                      "alone; use ZeroRedundancyOptimizer::consolidated_state()");
  const NoGrad no_grad;
  const MemoryCategoryScope category(MemoryCategory::other);
  OptimState state =
      parallel::local_optim_state(optimizer, parallel::optimized_parameters(module, optimizer, {}));
  for (OptimState::Parameter& parameter : state.parameters) {
    for (auto& [name, tensor] : parameter.state) tensor = tensor.clone().to(Device::cpu());
  }
  return state;
}

void load_full_optim_state(const nn::Module& module, optim::Optimizer& optimizer,
                           const OptimState& state) {
  const NoGrad no_grad;
  const auto parameters = parallel::optimized_parameters(module, optimizer, {});
  const parallel::OptimLoad load =
      parallel::read_optim_states(optimizer, parameters, std::span(&state, 1), true);
  check(load.wrong.empty(), "[load_full_optim_state] the state does not fit", load.wrong);
  for (const StateTarget& target :
       parallel::prepare_optimizer(optimizer, parameters, load.steps, load.rates)) {
    load.pieces.fill(target);
  }
}

}  // namespace cohort
