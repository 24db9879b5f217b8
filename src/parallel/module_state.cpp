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

namespace {

void fill_all(const char* what, const StatePieces& pieces,
              const std::vector<StateTarget>& targets) {
  const std::string wrong = pieces.problems(targets);
  check(wrong.empty(), "[", what, "] the state does not fit", wrong);
  for (const StateTarget& target : targets) pieces.fill(target);
}

}  // namespace

std::vector<nn::NamedTensor> assemble_full_state(std::span<const ShardedState> states) {
  const NoGrad no_grad;
  StatePieces pieces;
  for (std::size_t source = 0; source < states.size(); ++source) {
    for (const ShardedTensor& piece : states[source]) pieces.add(piece, static_cast<int>(source));
  }
  std::vector<nn::NamedTensor> result;
  for (const StateTarget& target : parallel::fill_whole("assemble_full_state", pieces)) {
    result.push_back({target.name, target.tensor});
  }
  return result;
}

void load_full_state(nn::Module& module, const std::vector<nn::NamedTensor>& state) {
  const NoGrad no_grad;
  StatePieces pieces;
  for (const auto& [name, tensor] : state) {
    check(tensor.defined(), "[load_full_state] '", name, "' is undefined");
    pieces.add({name, tensor.shape(), 0, tensor.numel(), 0, tensor}, 0);
  }
  fill_all("load_full_state", pieces, parallel::state_targets(module, {}));
}

OptimState full_optim_state(const nn::Module& module, const optim::Optimizer& optimizer) {
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
