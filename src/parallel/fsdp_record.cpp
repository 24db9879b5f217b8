// The counters of a step, and a step without the other ranks.

#include <algorithm>
#include <tuple>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "parallel/fsdp_rehearsal.h"
#include "parallel/fsdp_runtime.h"

namespace cohort::parallel {
namespace {

// While it lives, tensors are on the meta device and have no gradients.
class OnMeta {
 public:
  explicit OnMeta(std::vector<Tensor> tensors) : tensors_(std::move(tensors)) {
    const NoGrad no_grad;
    for (Tensor& tensor : tensors_) {
      gradients_.push_back(tensor.grad());
      if (gradients_.back().defined()) tensor.set_grad({});
      Tensor stand_in = Tensor::empty(tensor.shape(), {tensor.dtype(), Device::meta(), false});
      tensor.impl()->swap_view(*stand_in.impl());
      own_.push_back(std::move(stand_in));
    }
  }
  ~OnMeta() {
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      tensors_[i].impl()->swap_view(*own_[i].impl());
      if (tensors_[i].grad().defined() || gradients_[i].defined()) {
        tensors_[i].set_grad(gradients_[i]);
      }
    }
  }
  OnMeta(const OnMeta&) = delete;
  OnMeta& operator=(const OnMeta&) = delete;

 private:
  std::vector<Tensor> tensors_;
  std::vector<Tensor> own_;
  std::vector<Tensor> gradients_;
};

// Calls `leave` at its end.
class Finally {
 public:
  explicit Finally(std::function<void()> leave) : leave_(std::move(leave)) {}
  ~Finally() { leave_(); }
  Finally(const Finally&) = delete;
  Finally& operator=(const Finally&) = delete;

 private:
  std::function<void()> leave_;
};

}  // namespace

std::vector<comm::ProcessGroup*> FSDPRuntime::all_groups() const {
  std::vector<comm::ProcessGroup*> all{group_.get()};
  for (const auto& [ranks, groups] : groups_) {
    for (const auto& group : {groups.shard, groups.replicate}) {
      if (group && group != group_) all.push_back(group.get());
    }
  }
  return all;
}

std::vector<Tensor> FSDPRuntime::unsharded() const {
  std::vector<Tensor> tensors = module_.buffers();
  for (const auto& [name, tensor] : module_.named_parameters()) {
    if (is_ignored(options_, name)) tensors.push_back(tensor);
  }
  return tensors;
}

void FSDPRuntime::begin_record() {
  if (!step_record_ || step_record_->complete || recording_) return;
  const auto allocator = Context::current().runtime()->allocator(collectives_->device());
  allocator->reset_peak();
  *step_record_ = {};
  step_record_->before = allocator->stats();
  for (const comm::ProcessGroup* group : all_groups()) {
    step_record_->groups_before.push_back(group->stats());
  }
  recording_ = true;
}

void FSDPRuntime::end_record() {
  if (!std::exchange(recording_, false)) return;
  step_record_->after = Context::current().runtime()->allocator(collectives_->device())->stats();
  for (const comm::ProcessGroup* group : all_groups()) {
    step_record_->groups_after.push_back(group->stats());
  }
  step_record_->complete = true;
}

FSDPRuntime::StepRecord FSDPRuntime::rehearse(const std::function<void()>& step,
                                              std::vector<FSDPPlan::Collective>& collectives) {
  require_rest("plan");
  for (const FSDPUnit& unit : units_) {
    check(!unit.accumulated, "[plan] unit '", unit.label(),
          "' keeps gradients of backwards without sync; plan outside of an accumulation");
    check(unit.state == FSDPUnit::State::sharded, "[plan] the parameters of unit '", unit.label(),
          "' are gathered, by unshard() or a forward without a backward; call reshard() on all "
          "ranks before");
  }
  Context& context = Context::current();
  RecordedCollectives recorded;
  const auto order = std::pair(last_order_, std::exchange(step_record_, StepRecord{}));
  const PhiloxState random = context.generator.state();
  const bool sync = std::exchange(sync_, true);
  const OnMeta on_meta(unsharded());
  for (FSDPUnit& unit : units_) {
    for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->begin_rehearsal();
  }
  collectives_ = &recorded;
  const Finally finally([&] {
    reset();
    trim_gradient_slots();
    collectives_ = &group_collectives_;
    for (FSDPUnit& unit : units_) {
      for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->end_rehearsal();
    }
    std::tie(last_order_, step_record_) = order;
    recording_ = false;
    sync_ = sync;
    context.generator.set_state(random);
  });
  // A step knows the order of the one before.
  for (int run = 0; run < 2; ++run) {
    for (const Tensor& parameter : module_.parameters()) Tensor(parameter).set_grad({});
    recorded.clear();
    record_next_step();
    step();
  }
  check(step_record_->complete,
        "[FSDP] the step that was to be planned ran no forward and backward of the module");
  collectives = recorded.record();
  return *step_record_;
}

}  // namespace cohort::parallel
