#include <utility>

#include "cohort/core/error.h"
#include "cohort/parallel/comm_hook.h"

namespace cohort {

// A chain: the first step has communication and its result; each later one continues the one
// before.
struct BucketWork::Step {
  comm::Work work;
  Tensor result;
  BucketWork before;
  std::function<Tensor(Tensor)> map;
  std::function<BucketWork(Tensor)> chain;
};

BucketWork BucketWork::after(comm::Work work, Tensor result) {
  auto step = std::make_shared<Step>();
  step->work = std::move(work);
  step->result = std::move(result);
  return BucketWork(std::move(step));
}

BucketWork BucketWork::done(Tensor result) {
  return after(comm::Work(), std::move(result));
}

BucketWork BucketWork::then(std::function<Tensor(Tensor)> next) const {
  check(valid() && next, "[BucketWork] then() needs work to continue, and a function");
  auto step = std::make_shared<Step>();
  step->before = *this;
  step->map = std::move(next);
  return BucketWork(std::move(step));
}

BucketWork BucketWork::then(std::function<BucketWork(Tensor)> next) const {
  check(valid() && next, "[BucketWork] then() needs work to continue, and a function");
  auto step = std::make_shared<Step>();
  step->before = *this;
  step->chain = std::move(next);
  return BucketWork(std::move(step));
}

const comm::Work& BucketWork::work() const {
  check(valid(), "[BucketWork] there is no work");
  const Step* step = step_.get();
  while (step->before.valid()) step = step->before.step_.get();
  return step->work;
}

Tensor BucketWork::wait() const {
  check(valid(), "[BucketWork] there is no work");
  if (!step_->before.valid()) {
    step_->work.wait();
    return step_->result;
  }
  Tensor result = step_->before.wait();
  if (step_->map) return step_->map(std::move(result));
  const BucketWork next = step_->chain(std::move(result));
  check(next.valid(), "[BucketWork] a continuation returned no work");
  return next.wait();
}

namespace comm_hooks {
namespace {

CommHook compress(std::shared_ptr<comm::ProcessGroup> group, DType dtype) {
  check(group != nullptr, "[comm_hooks] the group is null");
  return [group = std::move(group), dtype](const GradBucket& bucket) {
    const Tensor small = bucket.buffer.to(dtype);
    const comm::Work work = group->all_reduce(small, comm::ReduceOp::mean,
                                              {.owner = str("compressed bucket ", bucket.index)});
    return BucketWork::after(work, small).then([buffer = bucket.buffer](Tensor reduced) {
      Tensor whole = buffer;
      whole.copy_(reduced);
      return whole;
    });
  };
}

}  // namespace

CommHook all_reduce(std::shared_ptr<comm::ProcessGroup> group) {
  check(group != nullptr, "[comm_hooks] the group is null");
  return [group = std::move(group)](const GradBucket& bucket) {
    return BucketWork::after(group->all_reduce(bucket.buffer, comm::ReduceOp::mean,
                                               {.owner = str("bucket ", bucket.index)}),
                             bucket.buffer);
  };
}

CommHook fp16_compress(std::shared_ptr<comm::ProcessGroup> group) {
  return compress(std::move(group), f16);
}

CommHook bf16_compress(std::shared_ptr<comm::ProcessGroup> group) {
  return compress(std::move(group), bf16);
}

CommHook noop() {
  return [](const GradBucket& bucket) { return BucketWork::done(bucket.buffer); };
}

}  // namespace comm_hooks

namespace fsdp_hooks {
namespace {

// The mean over both groups, in the dtype of `whole`, in `row`.
BucketWork mean_of_part(const FSDPGradient& gradient, const Tensor& whole, const Tensor& row) {
  const comm::CollectiveOptions options{.owner = "hooked " + gradient.unit};
  const auto& replicas = gradient.replicate_group;
  if (gradient.shard_group->size() == 1) {
    Tensor(row).copy_(whole);
    return BucketWork::after(replicas->all_reduce(row, comm::ReduceOp::mean, options), row);
  }
  const comm::Work work =
      gradient.shard_group->reduce_scatter(row, whole, comm::ReduceOp::mean, options);
  if (!replicas) return BucketWork::after(work, row);
  const comm::Work second = replicas->all_reduce(row, comm::ReduceOp::mean, options);
  return BucketWork::after(work, row).then(
      [second](Tensor result) { return BucketWork::after(second, std::move(result)); });
}

FSDPCommHook compress(DType dtype) {
  return [dtype](const FSDPGradient& gradient) {
    const Tensor small = gradient.whole.to(dtype);
    const Tensor part = Tensor::empty(gradient.row.shape(), small.options());
    return mean_of_part(gradient, small, part).then([row = gradient.row](Tensor reduced) {
      Tensor whole = row;
      whole.copy_(reduced);
      return whole;
    });
  };
}

}  // namespace

FSDPCommHook reduce_scatter() {
  return [](const FSDPGradient& gradient) {
    return mean_of_part(gradient, gradient.whole, gradient.row);
  };
}

FSDPCommHook fp16_compress() {
  return compress(f16);
}

FSDPCommHook bf16_compress() {
  return compress(bf16);
}

FSDPCommHook noop() {
  return [](const FSDPGradient& gradient) {
    const std::int64_t part = gradient.row.numel();
    Tensor row = gradient.row;
    row.copy_(gradient.whole.as_strided(
        {part}, {1}, gradient.whole.storage_offset() + part * gradient.shard_group->rank()));
    return BucketWork::done(row);
  };
}

}  // namespace fsdp_hooks
}  // namespace cohort
