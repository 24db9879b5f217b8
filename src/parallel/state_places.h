#pragma once

#include <cstddef>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/nn/module.h"
#include "parallel/flat_parameter.h"
#include "parallel/fsdp_runtime.h"
#include "parallel/state_pieces.h"

namespace cohort::parallel {

// What of a tensor this rank holds.
struct StatePlace {
  FlatParameter* flat = nullptr;  // null: all of it, on every rank
  std::size_t index = 0;          // in `flat`
  Shape shape;                    // of the whole tensor
  FlatLayout::Range part;
  int replica = 0;  // of the ranks that hold the same part
};

// Where the tensors of a module's state lie.
class StatePlaces {
 public:
  StatePlaces() = default;  // nothing is sharded
  explicit StatePlaces(FSDPRuntime& runtime);

  StatePlace of(const Tensor& tensor) const;

 private:
  std::unordered_map<const TensorImpl*, StatePlace> sharded_;
  int rank_ = 0;
};

// What a model's state fills, in the module's order.
std::vector<StateTarget> state_targets(const nn::Module& module, const StatePlaces& places);

// Collective over the ranks that share `flat` out. Of parameter `index`, or of something that is
// cut like it, the whole, on the CPU, in memory of its own: on all of these ranks, or on the first
// alone (undefined on the others, which hold nothing). `row` is this rank's part, contiguous.
Tensor gather_whole(const FlatParameter& flat, std::size_t index, const Tensor& row,
                    bool everywhere);

}  // namespace cohort::parallel
