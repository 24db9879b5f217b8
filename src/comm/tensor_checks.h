#pragma once

#include <cstdint>
#include <span>

#include "comm/process_group_impl.h"

namespace cohort::comm {

// What is wrong with the arguments of a collective, found before anything is enqueued.

struct NamedTensor {
  const char* name;
  const Tensor& tensor;
};

// Defined, with memory, contiguous, and on the group's device.
void check_tensor(Operation operation, const char* argument, const Tensor& tensor,
                  const ProcessGroup::Impl& group);
// Integers and bool have no mean and no scale.
void check_reduction(Operation operation, DType dtype, ReduceOp op, double scale);
// `whole` holds all parts, `part` this rank's; they overlap where the part has its place, or not at
// all.
void check_parts(Operation operation, const NamedTensor& whole, const NamedTensor& part,
                 std::span<const std::int64_t> counts, const ProcessGroup::Impl& group);
void check_exchange(const Tensor& out, std::span<const std::int64_t> out_counts, const Tensor& in,
                    std::span<const std::int64_t> in_counts, const ProcessGroup::Impl& group);
// Another rank of the group.
void check_peer(Operation operation, int peer, const ProcessGroup::Impl& group);

}  // namespace cohort::comm
