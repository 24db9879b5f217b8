#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/dims.h"
#include "cohort/core/tensor.h"
#include "cohort/nn/module.h"
#include "cohort/optim/optimizer.h"

namespace cohort {

// States of models and optimizers that are sharded, and their way to whole ones and back
// (docs/fsdp_states.md). Everything goes by the names that the bare module gives its parameters, so
// that neither the number of ranks, nor the units, nor the wrapper matter. Loading lists all that
// does not fit before it changes anything.

// A part of a named tensor: elements [begin, end) of the whole one in row-major order.
struct ShardedTensor {
  std::string name;
  Shape shape;  // of the whole tensor
  std::int64_t begin = 0;
  std::int64_t end = 0;
  // Which of the ranks that hold this same part it comes from; a checkpoint needs replica 0 alone.
  int replica = 0;
  // end - begin elements: one row, or the whole tensor in its own shape.
  Tensor tensor;
};
// What one rank holds of a model.
using ShardedState = std::vector<ShardedTensor>;

// What an optimizer knows of the parameters of one module: all of it, or one rank's part.
struct OptimState {
  // Elements [begin, end) of one parameter's state.
  struct Parameter {
    std::string name;
    Shape shape;  // of the whole parameter
    std::int64_t begin = 0;
    std::int64_t end = 0;
    int replica = 0;
    std::int64_t step_count = 0;           // 0: never stepped, or without elements here
    std::vector<optim::NamedState> state;  // empty then
  };
  struct Group {
    double lr = 0;
    std::vector<std::string> parameters;
  };

  std::vector<Parameter> parameters;
  std::vector<Group> groups;
};

// Of summon_full_params().
struct SummonOptions {
  // What the body writes to the elements that this rank owns stays.
  bool writeback = true;
  // Parameters are whole on rank 0 alone, and stay rows on the others. Without writeback only.
  bool rank0_only = false;
};

// The whole state out of the parts that all ranks held, in their order, as tensors of their own.
// Of parts that several ranks bring, the first one counts. InvalidArgument that lists what is
// misshapen, uncovered, or overlaps. Not collective.
std::vector<nn::NamedTensor> assemble_full_state(std::span<const ShardedState> states);
OptimState assemble_full_optim_state(std::span<const OptimState> states);

// For a module that is not sharded: bare, or within DDP. Not collective.
//
// Copies a whole state into the module's parameters and persistent buffers, converting dtypes.
// InvalidArgument that lists all entries that are missing, unknown or misshapen.
void load_full_state(nn::Module& module, const std::vector<nn::NamedTensor>& state);
// The state of the module's parameters that `optimizer` has, as copies on the CPU. Parameters that
// are not the module's are left out.
OptimState full_optim_state(const nn::Module& module, const optim::Optimizer& optimizer);
// Sets step counts, state and learning rates. A parameter that the state knows as never stepped
// becomes so. InvalidArgument as above, and where parameter groups differ.
void load_full_optim_state(const nn::Module& module, optim::Optimizer& optimizer,
                           const OptimState& state);

}  // namespace cohort
