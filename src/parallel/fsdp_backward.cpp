// Backward of sharded units.

#include <algorithm>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "parallel/fsdp_offload.h"
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

void FSDPRuntime::enter_backward(FSDPUnit& unit, const FSDPCall& call) {
  check(!summoned_, "[FSDP] backward of unit '", unit.label(), "' inside summon_full_params");
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
    try {
      unit.gradient = unit.groups->gradient->take();
    } catch (const AgreedOutOfMemory& error) {
      throw AgreedOutOfMemory(str("[FSDP] no room for the gradients of unit '", unit.label(),
                                  "'; all ranks have given this step up: ", error.what()));
    }
    // Whoever had it may still be reducing it.
    Context::current().stream(Device::cpu()).wait(unit.gradient.last_use);
  }
  for (FSDPUnit::Flat& flat : unit.flats) {
    if (!flat.parameter->trained()) continue;
    if (!unit.accumulated) std::fill(flat.used.begin(), flat.used.end(), false);
    flat.parameter->begin_backward(unit.gradient.memory, flat.gradient_offset, flat.used);
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
  if (accumulating_ && unit.gradient_bytes > 0) {
    bool any = false;
    for (FSDPUnit::Flat& flat : unit.flats) {
      any = any || std::find(flat.used.begin(), flat.used.end(), true) != flat.used.end();
    }
    for (FSDPUnit::Flat& flat : unit.flats) {
      if (!flat.parameter->trained()) continue;
      if (any && sync_) {
        reduce(unit, flat);
      } else {
        flat.parameter->end_backward(flat.used);
      }
    }
    if (any && !sync_) {
      unit.accumulated = true;
    } else {
      unit.accumulated = false;
      unit.gradient.last_use =
          any ? last_reader() : Context::current().stream(Device::cpu()).record();
      unit.groups->gradient->give_back(std::exchange(unit.gradient, {}));
    }
  }
  if (options_.backward_prefetch == BackwardPrefetch::post) prefetch_backward(unit);
  reshard(unit);
}

// Hands a flat gradient to the ranks that own its parts.
void FSDPRuntime::reduce(FSDPUnit& unit, FSDPUnit::Flat& flat) {
  const NoGrad no_grad;
  FlatParameter& parameter = *flat.parameter;
  const MemoryCategoryScope category(MemoryCategory::gradients);
  Tensor whole = parameter.end_backward(flat.used);
  const DType dtype = parameter.config().reduce;
  if (whole.dtype() != dtype) whole = whole.to(dtype);
  Reduction reduction{.flat = &flat, .row = {}, .works = {}, .used = flat.used, .source = whole};
  const std::string owner = unit.label();
  const bool offloads = parameter.config().offload;
  if (unit.groups->shard->size() > 1) {
    reduction.row = Tensor::empty({parameter.layout().shard()}, whole.options());
    const bool alone = unit.groups->replicate == nullptr;
    reduction.works.push_back(collectives_->reduce_scatter(
        *unit.groups->shard, reduction.row, whole,
        alone ? comm::ReduceOp::mean : comm::ReduceOp::sum, {.owner = owner}));
    if (!alone) {
      reduction.works.push_back(
          collectives_->all_reduce(*unit.groups->replicate, reduction.row, comm::ReduceOp::sum,
                                   {.scale = 1.0 / group_->size(), .owner = owner}));
    }
  } else if (unit.groups->replicate != nullptr && unit.groups->replicate->size() > 1) {
    reduction.works.push_back(collectives_->all_reduce(*unit.groups->replicate, whole,
                                                       comm::ReduceOp::mean, {.owner = owner}));
    if (!offloads) reduction.works.back().wait();
    reduction.row = offloads ? whole : whole.clone();  // the slot goes to the next unit
  } else {
    reduction.row = offloads ? whole : whole.clone();
  }
  if (offloads) offload(reduction);
  std::fill(flat.used.begin(), flat.used.end(), false);
  reductions_.push_back(std::move(reduction));
}

// The reduced row goes to the host, and the device's memory is free once it has been read.
void FSDPRuntime::offload(Reduction& reduction) {
  const Tensor row = reduction.row;
  const Tensor host = host_row(row.numel(), reduction.flat->parameter->dtype(),
                               MemoryCategory::gradients, row.device());
  offloading_.wait(reduction.works.empty() ? Context::current().stream(Device::cpu()).record()
                                           : reduction.works.back().event());
  const StreamScope scope(offloading_);
  Tensor(host).copy_(row);
  row.storage().record_stream(offloading_);
  reduction.offloaded = offloading_.record();
  reduction.row = host;
  // How early the device's memory is free depends on time; a rehearsal counts all of it.
  reduction.source = rehearsing() ? row : Tensor();
}

// Of the gradients that the last reduction was handed.
Event FSDPRuntime::last_reader() const {
  if (reductions_.empty()) return Context::current().stream(Device::cpu()).record();
  const Reduction& last = reductions_.back();
  if (offloading_) return last.offloaded;
  return last.works.empty() ? Context::current().stream(Device::cpu()).record()
                            : last.works.back().event();
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

// The ranks' agreement on which parameters were used anywhere; nobody reads the shards after it.
void FSDPRuntime::exchange_used() {
  if (group_->size() == 1) return;
  std::int64_t most = 1;  // never empty
  for (const Reduction& reduction : reductions_) {
    most += static_cast<std::int64_t>(reduction.used.size());
  }
  check<Error>(most <= used_flags_.numel(), "[FSDP] a unit was reduced twice in one backward");
  auto* flags = used_flags_.data<std::uint8_t>();
  std::int64_t count = 0;
  flags[count++] = 0;
  for (const Reduction& reduction : reductions_) {
    for (const bool used : reduction.used) flags[count++] = used ? 1 : 0;
  }
  const Tensor shared = used_flags_.as_strided({count}, {1}, 0);
  collectives_->all_reduce(*group_, shared, comm::ReduceOp::max, {.owner = "used parameters"})
      .synchronize();
  const std::uint8_t* agreed = shared.data<std::uint8_t>() + 1;
  for (Reduction& reduction : reductions_) {
    for (std::size_t i = 0; i < reduction.used.size(); ++i) reduction.used[i] = *agreed++ != 0;
  }
}

void FSDPRuntime::finish_backward() {
  backward_ = 0;
  // Units that nothing told of their end: their inputs take part in no graph, or not in this one.
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
    if (unit->in_backward) end_unit_backward(*unit);
  }
  for (FSDPUnit& unit : units_) reshard(unit);
  trim_full_slots();
  if (!accumulating_) return;
  if (sync_) exchange_used();
  std::vector<Reduction> reductions = std::exchange(reductions_, {});
  for (Reduction& reduction : reductions) {
    for (const comm::Work& work : reduction.works) work.wait();
    if (offloading_) Context::current().stream(Device::cpu()).wait(reduction.offloaded);
    reduction.source = {};
    reduction.flat->parameter->take_gradient(reduction.row, reduction.used);
    reduction.row = {};
  }
  for (auto& [ranks, groups] : groups_) groups.gradient->trim();
  if (!sync_) fence();
  end_record();
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
    for (FSDPUnit::Flat& flat : unit.flats) {
      flat.parameter->undo_backward();
      std::fill(flat.used.begin(), flat.used.end(), false);
    }
  }
  for (auto& [ranks, groups] : groups_) groups.gradient->trim();
}

}  // namespace cohort::parallel
