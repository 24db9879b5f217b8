#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>
#include <vector>

#include "cohort/core/dtype.h"

namespace cohort {

// What FSDP has laid out, and what one step of it will do. Bytes per rank.
struct FSDPPlan {
  // A flat buffer of one unit: its parameters of one dtype and trainability.
  struct Flat {
    DType dtype = DType::f32;    // of the shards
    DType compute = DType::f32;  // of the gathered buffer
    bool trained = true;
    bool resident = false;      // gathered without moving anything
    std::int64_t elements = 0;  // of the whole buffer, padding included
    std::int64_t shard = 0;     // of one rank's part
    std::vector<std::string> parameters;
  };
  struct Unit {
    std::string name;    // of the module; "" for the root
    int shard_size = 1;  // ranks that share its parameters out
    std::vector<Flat> flats;
  };

  int world_size = 1;
  std::vector<Unit> units;  // children before their parents, the root last

  // Collectives of parameters and gradients in a step in which every unit is used once, and their
  // logical bytes: what they are called with. Beside them a step has one all-reduce of a byte per
  // trained parameter (which ones were used), and where memory is shared one barrier.
  std::int64_t all_gathers = 0;
  std::int64_t reduce_scatters = 0;
  std::int64_t all_reduces = 0;
  std::int64_t gathered_bytes = 0;
  std::int64_t reduced_bytes = 0;

  // At rest: shards, their gradients, and the state of an optimizer with two values per element.
  std::int64_t parameter_bytes = 0;
  std::int64_t gradient_bytes = 0;
  std::int64_t adam_bytes = 0;
  // Shards and gradients that rest in host memory instead (cpu_offload).
  std::int64_t offloaded_bytes = 0;
  // Beside that, at most: gathered parameters and whole gradients.
  std::int64_t gathered_peak_bytes = 0;
  std::int64_t gradient_peak_bytes = 0;
};

// As a table.
std::ostream& operator<<(std::ostream& out, const FSDPPlan& plan);

}  // namespace cohort
