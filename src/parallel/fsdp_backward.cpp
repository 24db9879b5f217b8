// Backward of sharded units.

#include <algorithm>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "parallel/fsdp_runtime.h"
#include "parallel/what_of.h"

namespace cohort::parallel {

// Once per backward, when it comes to the first unit.
void FSDPRuntime::arm() {
  if (backward_ == current_backward()) return;
  backward_ = current_backward();
  accumulating_ = backward_is_accumulating();
  const auto self = shared_from_this();
  queue_callback([self] { self->finish_backward(); },
                 [self](const std::exception_ptr& error) { self->fail(error); });
}

// Grows with each write to the unit's shards.
std::uint64_t FSDPRuntime::version_of(const FSDPUnit& unit) {
  std::uint64_t version = 0;
  for (const FSDPUnit::Flat& flat : unit.flats) version += flat.parameter->version();
  return version;
}

void FSDPRuntime::enter_backward(FSDPUnit& unit, const FSDPCall& call) {
  check(!summoned_, "[FSDP] backward of unit '", unit.label(), "' inside summon_full_params");
  check<AutogradError>(call.version == version_of(unit), "[FSDP] the parameters of unit '",
                       unit.label(), "' were written between its forward and its backward (rank ",
                       group_->rank(), "); step the optimizer after backward");
  arm();
  if (!unit.in_backward) begin_unit_backward(unit);
  ++unit.open_calls;
  if (options_.backward_prefetch == BackwardPrefetch::pre) prefetch_backward(unit);
  const std::weak_ptr<FSDPRuntime> weak = weak_from_this();
  when_backward_has_left(call.begin, call.end, [weak, &unit, backward = backward_] {
    const auto self = weak.lock();
    if (!self || self->backward_ != backward) return;
    --unit.open_calls;
    self->end_if_complete(unit);
  });
}

void FSDPRuntime::begin_unit_backward(FSDPUnit& unit) {
  start_gather(unit);
  finish_gather(unit);
  unit.in_backward = true;
  unit.missing = 0;
  if (!accumulating_) return;
  if (unit.gradient_bytes > 0 && !unit.gradient.memory.defined()) {
    unit.gradient = take_for_gradients(*unit.groups->gradient, unit, unit.gradient_bytes);
    // Whoever had it may still be reducing it.
    Context::current().stream(Device::cpu()).wait(unit.gradient.last_use);
  }
  for (FSDPUnit::Flat& flat : unit.flats) {
    if (!flat.parameter->trained()) continue;
    if (!unit.accumulated) std::fill(flat.used.begin(), flat.used.end(), false);
    // Gradients that are converted add up where they are converted to.
    const bool lie_elsewhere = flat.parameter->converts_gradient();
    flat.parameter->begin_backward(unit.gradient.memory, flat.gradient_offset,
                                   lie_elsewhere ? std::vector<bool>(flat.used.size()) : flat.used);
    for (std::size_t i = 0; i < flat.parameter->size(); ++i) {
      flat.arrived[i] = false;
      flat.expected[i] = backward_reaches(flat.parameter->parameters()[i].tensor);
      if (flat.expected[i]) ++unit.missing;
    }
  }
}

void FSDPRuntime::on_gradient(FSDPUnit& unit, FSDPUnit::Flat& flat, std::size_t parameter) {
  const std::string& name = flat.parameter->parameters()[parameter].name;
  check<AutogradError>(unit.in_backward && flat.expected[parameter] && !flat.arrived[parameter],
                       "[FSDP] the gradient of '", name, "' came outside the backward of unit '",
                       unit.label(), "' (rank ", group_->rank(),
                       "); use a sharded parameter only inside the forward of its unit");
  flat.arrived[parameter] = true;
  flat.used[parameter] = true;
  --unit.missing;
  end_if_complete(unit);
}

void FSDPRuntime::end_if_complete(FSDPUnit& unit) {
  if (unit.in_backward && unit.missing == 0 && unit.open_calls == 0) end_unit_backward(unit);
}

void FSDPRuntime::end_unit_backward(FSDPUnit& unit) {
  unit.in_backward = false;
  unit.open_calls = 0;
  if (accumulating_ && unit.gradient_bytes > 0) end_gradients(unit);
  if (options_.backward_prefetch == BackwardPrefetch::post) prefetch_backward(unit);
  reshard(unit);
}

void FSDPRuntime::prefetch_backward(FSDPUnit& unit) {
  std::size_t at = cursor_;
  while (at > 0 && ended_[at - 1] != &unit) --at;
  if (at == 0) return;  // in an order of its own
  cursor_ = at - 1;
  for (std::size_t next = cursor_; next > 0; --next) {
    FSDPUnit& candidate = *ended_[next - 1];
    if (candidate.state == FSDPUnit::State::gathered) continue;
    if (may_start(candidate)) try_gather(candidate);
    return;
  }
}

void FSDPRuntime::finish_backward() {
  // Units that nothing told of their end: their inputs take part in no graph, or not in this one.
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
    if (unit->in_backward) end_unit_backward(*unit);
  }
  for (FSDPUnit& unit : units_) reshard(unit);
  trim_full_slots();
  if (accumulating_ && sync_) finish_reductions();
  backward_ = 0;
  if (accumulating_) trim_gradient_slots();
  // Otherwise the exchange of what was used is the fence behind which shards may be written.
  if (!accumulating_ || !sync_) fence();
  if (accumulating_ && sync_) end_record();
}

void FSDPRuntime::fail(const std::exception_ptr& error) {
  if (backward_ == 0) return;
  backward_ = 0;
  if (is_agreed(error)) {
    give_up_backward();
    return;
  }
  // The others wait for this rank's part of the step.
  abort(str("in backward: ", what_of(error)));
  for (FSDPUnit& unit : units_) {
    if (accumulating_) {
      for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->abandon_backward();
    }
    unit.in_backward = false;
    unit.open_calls = 0;
    unit.accumulated = false;
    unit.gradient = {};
    unit.converted = {};
    for (FSDPUnit::Flat& flat : unit.flats) std::fill(flat.used.begin(), flat.used.end(), false);
  }
  drop_reductions();
  reset();
}

// Once nobody reads or writes their memory any more.
void FSDPRuntime::drop_reductions() noexcept {
  for (Reduction& reduction : std::exchange(reductions_, {})) {
    try {
      for (const comm::Work& work : reduction.works) work.wait();
    } catch (const std::exception& error) {
      logging::debug(str("[FSDP] a reduction is given up: ", error.what()));
    }
    try {
      if (offloading_) Context::current().stream(Device::cpu()).wait(reduction.offloaded);
    } catch (const std::exception& error) {
      logging::debug(str("[FSDP] a gradient is given up: ", error.what()));
    }
  }
}

// All ranks have failed at the same point and the group goes on: the rows' gradients are those from
// before this backward. Whole gradients of no_sync() are lost, they were added to.
void FSDPRuntime::give_up_backward() noexcept {
  drop_reductions();
  reset();
  for (FSDPUnit& unit : units_) {
    unit.in_backward = false;
    unit.open_calls = 0;
    unit.accumulated = false;
    if (unit.gradient.memory.defined()) {
      unit.groups->gradient->give_back(std::exchange(unit.gradient, {}));
    }
    if (unit.converted.memory.defined()) {
      unit.groups->converted->give_back(std::exchange(unit.converted, {}));
    }
    for (FSDPUnit::Flat& flat : unit.flats) {
      flat.parameter->undo_backward();
      std::fill(flat.used.begin(), flat.used.end(), false);
    }
  }
  trim_gradient_slots();
}

}  // namespace cohort::parallel
