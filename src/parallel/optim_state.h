#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/nn/module.h"
#include "cohort/optim/optimizer.h"
#include "cohort/parallel/fsdp_state.h"
#include "parallel/state_pieces.h"
#include "parallel/state_places.h"

namespace cohort::parallel {

// A parameter of a module that an optimizer has.
struct OptimizedParameter {
  std::string name;
  Tensor tensor;
  StatePlace place;
  std::size_t group;
};
// In the module's order.
std::vector<OptimizedParameter> optimized_parameters(const nn::Module& module,
                                                     const optim::Optimizer& optimizer,
                                                     const StatePlaces& places);

std::vector<OptimState::Group> optim_groups(const optim::Optimizer& optimizer,
                                            const std::vector<OptimizedParameter>& parameters);
// What this rank holds, in the optimizer's own memory.
OptimState local_optim_state(const optim::Optimizer& optimizer,
                             const std::vector<OptimizedParameter>& parameters);

// States on their way into an optimizer.
struct OptimLoad {
  StatePieces pieces;               // named "weight: exp_avg"
  std::vector<std::int64_t> steps;  // of each parameter
  std::vector<double> rates;        // of each group of the optimizer
  std::string wrong;                // what keeps it from being loaded; empty when nothing does
};
// With `whole`, all of each parameter must be there, whatever of it this rank holds.
OptimLoad read_optim_states(const optim::Optimizer& optimizer,
                            const std::vector<OptimizedParameter>& parameters,
                            std::span<const OptimState> states, bool whole);
// Sets rates and step counts and makes room; what the states' elements go into.
std::vector<StateTarget> prepare_optimizer(optim::Optimizer& optimizer,
                                           const std::vector<OptimizedParameter>& parameters,
                                           const std::vector<std::int64_t>& steps,
                                           const std::vector<double>& rates);

}  // namespace cohort::parallel
