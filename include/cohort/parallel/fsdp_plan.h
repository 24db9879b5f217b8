#pragma once

#include <array>
#include <cstdint>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/dtype.h"
#include "cohort/core/memory.h"

namespace cohort {

// What FSDP has laid out, and what one step of it will do. All numbers are this rank's; bytes.
struct FSDPPlan {
  // A flat buffer of one unit: its parameters of one dtype and trainability.
  struct Flat {
    DType dtype = DType::f32;     // of the shards
    DType compute = DType::f32;   // of the gathered buffer
    DType reduce = DType::f32;    // of the reduction of its gradient
    DType gradient = DType::f32;  // of the shards' gradients
    bool trained = true;
    bool resident = false;      // gathered without moving anything
    bool offloaded = false;     // shards and gradients rest in host memory
    std::int64_t elements = 0;  // of the whole buffer, padding included
    std::int64_t shard = 0;     // of one rank's part
    std::vector<std::string> parameters;
  };
  struct Unit {
    std::string name;      // of the module; "" for the root
    std::string strategy;  // "full_shard"
    int shard_size = 1;    // ranks that share its parameters out
    std::vector<Flat> flats;
  };
  struct Collective {
    comm::Operation operation = comm::Operation::barrier;
    std::string owner;  // a unit's name, "root", "shards" (the fence), "used parameters"
    int ranks = 1;      // of its group
    DType dtype = DType::u8;
    std::int64_t elements = 0;       // of its largest tensor
    std::int64_t logical_bytes = 0;  // the same in bytes
    std::int64_t moved_bytes = 0;    // that this rank writes for it, to memory or a wire
  };
  using ByCategory = std::array<std::int64_t, kMemoryCategoryCount>;

  int world_size = 1;
  std::vector<Unit> units;  // children before their parents, the root last
  // Of one step, in order: forward and backward of every rank, without the user's own. Not listed:
  // where groups of ranks share the model out, an all_to_all of a byte per rank for each piece of
  // memory that a step allocates.
  std::vector<Collective> collectives;
  // Whether the step was run on the meta device. If not, collectives are those of a model that
  // calls each unit once in order of registration, activations are not included, and the rise of
  // parameters and gradients is an upper bound.
  bool rehearsed = false;

  // Between steps: shards and what is not sharded, buffers included; the shards' gradients, and the
  // state of an optimizer with two values per element of the shards' dtype.
  std::int64_t parameter_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t adam_bytes = 0;
  // Shards and gradients that rest in host memory instead (cpu_offload).
  std::int64_t offloaded_bytes = 0;
  // By how much each category rises in a step (with a forward_prefetch, a later than the first)
  // above what lives before it, and all together, with gradients that were cleared (None) before.
  ByCategory rise{};
  std::int64_t rise_total = 0;

  // Sums over the collectives of one kind.
  std::int64_t count(comm::Operation operation) const;
  std::int64_t logical_bytes(comm::Operation operation) const;
  std::int64_t moved_bytes(comm::Operation operation) const;
  std::int64_t moved_bytes() const;  // of all
  // The most that parameters, gradients, activations and communication hold at once in a step.
  std::int64_t peak_bytes() const { return parameter_bytes + rise_total; }
};

// As a table.
std::ostream& operator<<(std::ostream& out, const FSDPPlan& plan);

// A plan beside the step that ran after it.
struct FSDPPlanCheck {
  struct Row {
    std::string what;  // "all_gather: moved bytes"
    std::int64_t planned = 0;
    std::int64_t measured = 0;
    double ratio() const;  // measured / planned; 1 for two zeros
  };
  std::vector<Row> rows;
  // The row of that name. InvalidArgument when there is none.
  const Row& row(std::string_view what) const;
};
std::ostream& operator<<(std::ostream& out, const FSDPPlanCheck& check);

}  // namespace cohort
