#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/tensor.h"

namespace cohort {

// A bucket of gradients whose last one has just come, as a communication hook sees it.
struct GradBucket {
  int index = 0;         // in the order of reduction, from 0
  bool is_last = false;  // of this backward
  // All gradients, flat, padding included. The hook may write to it, and may use it for its result.
  Tensor buffer;
  // Views of `buffer` with the parameters' shapes, and the parameters, in the same order.
  std::vector<Tensor> gradients;
  std::vector<Tensor> parameters;
};

// What a communication hook returns: communication that is on its way, and what to make of it.
// Immutable handle; a default-constructed one stands for no work, which is an error.
class BucketWork {
 public:
  BucketWork() = default;

  // `result` will hold the reduced bucket when `work` has finished.
  static BucketWork after(comm::Work work, Tensor result);
  // `result` is there already.
  static BucketWork done(Tensor result);

  // Continues with `next` on the result. Runs in the rank's host thread at the end of backward, in
  // the order of the buckets, which is the same on all ranks: it may start further collectives.
  BucketWork then(std::function<Tensor(Tensor)> next) const;
  BucketWork then(std::function<BucketWork(Tensor)> next) const;

  bool valid() const { return step_ != nullptr; }
  // The communication that is on its way first; finished when there is none.
  const comm::Work& work() const;
  // Makes the current compute stream wait for all of it, and returns the result. Errors are those
  // of comm::Work::wait() and of the continuations.
  Tensor wait() const;

 private:
  struct Step;
  explicit BucketWork(std::shared_ptr<const Step> step) : step_(std::move(step)) {}

  std::shared_ptr<const Step> step_;
};

// Called for each bucket instead of its all-reduce, in the order of the buckets on every rank. The
// result has the bucket's elements and dtype; it replaces the gradients. DDP applies no mean of its
// own: the hook does that.
using CommHook = std::function<BucketWork(const GradBucket& bucket)>;

// Hooks under PyTorch's names. The group is the one that DDP was made with.
namespace comm_hooks {

// What DDP does without a hook: the mean over the ranks, in place.
CommHook all_reduce(std::shared_ptr<comm::ProcessGroup> group);
// The bucket travels in half precision. The mean is summed in f32, so it overflows only where the
// mean itself does.
CommHook fp16_compress(std::shared_ptr<comm::ProcessGroup> group);
CommHook bf16_compress(std::shared_ptr<comm::ProcessGroup> group);
// No communication: gradients stay local. Measures what communication costs at most.
CommHook noop();

}  // namespace comm_hooks

// The gradients of one flat buffer of an FSDP unit (docs/fsdp.md), as a communication hook sees
// them when the last of this rank's has come.
struct FSDPGradient {
  int index = 0;     // in the order of reduction, from 0 in each backward
  std::string unit;  // the module's name, "root" for the root
  // The whole gradient [ranks of shard_group * row.numel()] in the unit's reduce_dtype, padding and
  // missing gradients zero. May be written. Its memory goes to another unit when the first
  // communication (BucketWork::work()) has finished, so continuations must not read it.
  Tensor whole;
  // Memory for the result [elements that this rank owns], uninitialised.
  Tensor row;
  // The ranks that the buffer is cut up among, in order of their parts, and those that own the same
  // part as this one (null where there are no others). Together they are all ranks.
  std::shared_ptr<comm::ProcessGroup> shard_group;
  std::shared_ptr<comm::ProcessGroup> replicate_group;
};

// Called for each flat buffer instead of its reduce-scatter, in one order on every rank. The result
// has the row's elements and dtype and becomes the gradient of this rank's part as it is: the mean,
// over both groups, is the hook's business.
using FSDPCommHook = std::function<BucketWork(const FSDPGradient& gradient)>;

// Hooks for FSDP; they take the groups from what they are called with.
namespace fsdp_hooks {

// What FSDP does without a hook: the mean over the ranks.
FSDPCommHook reduce_scatter();
// Gradients travel in half precision, summed in f32.
FSDPCommHook fp16_compress();
FSDPCommHook bf16_compress();
// No communication: the row is this rank's own gradient. Measures what communication costs at most.
FSDPCommHook noop();

}  // namespace fsdp_hooks
}  // namespace cohort
