#pragma once

#include <cstdint>
#include <string>

#include "cohort/comm/process_group.h"
#include "cohort/core/memory.h"
#include "cohort/core/tensor.h"

namespace cohort::parallel {

// How a step over sharded units talks to the other ranks, so that it can also be run without them
// (FSDPRehearsal). The functions are those of ProcessGroup.
class FSDPCollectives {
 public:
  virtual ~FSDPCollectives() = default;
  virtual comm::Work all_gather(comm::ProcessGroup& group, const Tensor& out, const Tensor& in,
                                const comm::CollectiveOptions& options) = 0;
  virtual comm::Work reduce_scatter(comm::ProcessGroup& group, const Tensor& out, const Tensor& in,
                                    comm::ReduceOp op, const comm::CollectiveOptions& options) = 0;
  virtual comm::Work all_reduce(comm::ProcessGroup& group, const Tensor& tensor, comm::ReduceOp op,
                                const comm::CollectiveOptions& options) = 0;
  virtual comm::Work barrier(comm::ProcessGroup& group, const comm::CollectiveOptions& options) = 0;
  // Bytes in symmetric memory, counted under the context's category.
  virtual Tensor allocate(comm::ProcessGroup& group, std::int64_t bytes) = 0;
  virtual void abort(comm::ProcessGroup& group, const std::string& reason) noexcept = 0;
  // Where the parameters are that a step computes with.
  virtual Device device() const = 0;
};

// The groups' own.
class GroupCollectives final : public FSDPCollectives {
 public:
  comm::Work all_gather(comm::ProcessGroup& group, const Tensor& out, const Tensor& in,
                        const comm::CollectiveOptions& options) override {
    return group.all_gather(out, in, options);
  }
  comm::Work reduce_scatter(comm::ProcessGroup& group, const Tensor& out, const Tensor& in,
                            comm::ReduceOp op, const comm::CollectiveOptions& options) override {
    return group.reduce_scatter(out, in, op, options);
  }
  comm::Work all_reduce(comm::ProcessGroup& group, const Tensor& tensor, comm::ReduceOp op,
                        const comm::CollectiveOptions& options) override {
    return group.all_reduce(tensor, op, options);
  }
  comm::Work barrier(comm::ProcessGroup& group, const comm::CollectiveOptions& options) override {
    return group.barrier(options);
  }
  Tensor allocate(comm::ProcessGroup& group, std::int64_t bytes) override {
    return group.allocate({bytes}, {.dtype = DType::u8});
  }
  void abort(comm::ProcessGroup& group, const std::string& reason) noexcept override {
    if (group.size() > 1) group.abort(reason);
  }
  Device device() const override { return Device::cpu(); }
};

}  // namespace cohort::parallel
