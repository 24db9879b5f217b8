#pragma once

#include <cstdint>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/tensor.h"

namespace cohort::parallel {

// Gives all ranks `root`'s values of `tensors` (any dtypes and strides, equal on all ranks), packed
// into few broadcasts. The compute stream runs on after the values are there. Invisible to
// autograd: versions do not change. Returns the number of broadcasts.
int broadcast_coalesced(comm::ProcessGroup& group, const std::vector<Tensor>& tensors, int root,
                        const char* owner);

// The number of broadcasts that a call for `tensors` makes, and the bytes they carry.
struct BroadcastCost {
  std::int64_t broadcasts = 0;
  std::int64_t bytes = 0;
};
BroadcastCost broadcast_cost(const std::vector<Tensor>& tensors);

}  // namespace cohort::parallel
