#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/comm/process_group.h"
#include "cohort/comm/work.h"
#include "cohort/nn/module.h"
#include "cohort/parallel/fsdp_options.h"
#include "parallel/flat_parameter.h"
#include "parallel/slots.h"

namespace cohort::parallel {

// The ranks that share a parameter out, and those that have the same part (null for a lone rank),
// with the memory that their units take turns in.
struct FSDPGroups {
  std::shared_ptr<comm::ProcessGroup> shard;
  std::shared_ptr<comm::ProcessGroup> replicate;
  std::unique_ptr<Slots> full;      // of all units but the root
  std::unique_ptr<Slots> gradient;  // of all units
  // Of units whose gradients are reduced in another dtype than they are computed in.
  std::unique_ptr<Slots> converted;
};

// What one gather covers: a module of the tree with those of its parameters that no deeper unit
// has.
struct FSDPUnit {
  struct Flat {
    std::unique_ptr<FlatParameter> parameter;
    std::int64_t full_offset = 0;       // in the unit's slot of gathered memory
    std::int64_t gradient_offset = 0;   // in its slot of gradients
    std::int64_t converted_offset = 0;  // in its slot of converted gradients
    // Of the running backward, by parameter.
    std::vector<bool> arrived;
    std::vector<bool> expected;
    // Of the accumulation: whether a gradient has come since the last reduction.
    std::vector<bool> used;
  };

  nn::Module* module = nullptr;
  std::string name;
  bool root = false;
  FSDPUnitOptions options;
  bool reshard_after_forward = true;
  FSDPGroups* groups = nullptr;
  std::vector<Flat> flats;
  std::int64_t full_bytes = 0;      // of a slot: what is gathered, without resident buffers
  std::int64_t gradient_bytes = 0;  // of a slot
  std::int64_t converted_bytes = 0;
  // Kept in full precision: the dtype that its inputs are converted to.
  std::optional<DType> own_dtype;
  std::vector<HookHandle> hooks;

  // Gathered memory.
  enum class State { sharded, gathering, gathered };
  State state = State::sharded;
  Slots::Slot slot;
  std::vector<comm::Work> gathers;
  int running = 0;  // calls of forward that have begun and not ended

  // The running backward.
  bool in_backward = false;
  int missing = 0;        // expected gradients that have not come
  int open_calls = 0;     // calls whose backward has begun and will tell when it is over
  Slots::Slot gradient;   // taken from begin to the end of its reduction
  Slots::Slot converted;  // taken for the reduction
  // The slot in which gradients are reduced holds those of earlier backwards without sync.
  bool accumulated = false;

  // Whether its parameters stay gathered from forward to backward.
  bool keeps_after_forward() const { return root || !reshard_after_forward; }
  std::string label() const { return root ? std::string("root") : name; }
};

constexpr bool reshards_after_forward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::full_shard || strategy == ShardingStrategy::hybrid_shard;
}

// One call of a unit's forward: the numbers of the operations that it recorded.
struct FSDPCall {
  const FSDPUnit* unit = nullptr;
  std::uint64_t version = 0;  // of the unit's shards
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::optional<DType> outputs = {};  // dtype that its floating outputs are converted to
};

// Cuts a model into units. Parameters that several units use (tied ones) belong to the deepest unit
// that contains all of them. Children before their parents, the root last.
struct UnitPlan {
  nn::Module* module;
  std::string name;
  std::vector<nn::NamedTensor> parameters;
  std::vector<nn::NamedTensor> buffers = {};  // of its modules, without ignored ones
  bool full_precision = false;                // mixed_precision.keep_full_precision takes it
};
std::vector<UnitPlan> cut_into_units(nn::Module& root, const FSDPOptions& options);
// Whether a module is to be a unit of its own, in its own precision.
bool keeps_full_precision(const FSDPOptions& options, const nn::Module& module,
                          const std::string& name);
// The options of one unit.
FSDPUnitOptions options_of_unit(const FSDPOptions& options, const nn::Module& module,
                                const std::string& name);
// The dtype that a unit's inputs are converted to because it is kept in full precision.
std::optional<DType> own_dtype(const UnitPlan& plan, const FSDPUnitOptions& options);
// What the options leave alone.
bool is_ignored(const FSDPOptions& options, const std::string& parameter);

}  // namespace cohort::parallel
