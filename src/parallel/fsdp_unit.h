#pragma once

#include <memory>
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
};

// What one gather covers: a module of the tree with those of its parameters that no deeper unit
// has.
struct FSDPUnit {
  struct Flat {
    std::unique_ptr<FlatParameter> parameter;
    std::int64_t full_offset = 0;      // in the unit's slot of gathered memory
    std::int64_t gradient_offset = 0;  // in its slot of gradients
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
  std::vector<HookHandle> hooks;

  // Gathered memory.
  enum class State { sharded, gathering, gathered };
  State state = State::sharded;
  Slots::Slot slot;
  std::vector<comm::Work> gathers;
  int running = 0;  // calls of forward that have begun and not ended

  // The running backward.
  bool in_backward = false;
  int missing = 0;           // expected gradients that have not come
  int open_calls = 0;        // calls whose backward has begun and will tell when it is over
  Slots::Slot gradient;      // taken from begin to the end of its reduction
  bool accumulated = false;  // `gradient` holds gradients of earlier backwards without sync

  // Whether its parameters stay gathered from forward to backward.
  bool keeps_after_forward() const { return root || !reshard_after_forward; }
  std::string label() const { return root ? std::string("root") : name; }
};

constexpr bool reshards_after_forward(ShardingStrategy strategy) {
  return strategy == ShardingStrategy::full_shard || strategy == ShardingStrategy::hybrid_shard;
}

// One call of a unit's forward: the numbers of the operations that it recorded.
struct FSDPCall {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

// Cuts a model into units. Parameters that several units use (tied ones) belong to the deepest unit
// that contains all of them. Children before their parents, the root last.
struct UnitPlan {
  nn::Module* module;
  std::string name;
  std::vector<nn::NamedTensor> parameters;
};
std::vector<UnitPlan> cut_into_units(nn::Module& root, const FSDPOptions& options);
// The options of one unit.
FSDPUnitOptions options_of_unit(const FSDPOptions& options, const nn::Module& module,
                                const std::string& name);
// What the options leave alone.
bool is_ignored(const FSDPOptions& options, const std::string& parameter);

}  // namespace cohort::parallel
