// From whole gradients to those of the rows: conversion, accumulation, reduction.

#include <algorithm>
#include <cmath>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"
#include "cohort/ops/elementwise.h"
#include "parallel/agreement.h"
#include "parallel/fsdp_offload.h"
#include "parallel/fsdp_runtime.h"

namespace cohort::parallel {
namespace {

bool any(const std::vector<bool>& flags) {
  return std::find(flags.begin(), flags.end(), true) != flags.end();
}

}  // namespace

void FSDPRuntime::make_gradient_slots() {
  for (auto& [ranks, groups] : groups_) {
    std::int64_t computed = 0;
    std::int64_t converted = 0;
    bool reduced_in_place = false;
    for (const FSDPUnit& unit : units_) {
      if (unit.groups != &groups) continue;
      computed = std::max(computed, unit.gradient_bytes);
      converted = std::max(converted, unit.converted_bytes);
      reduced_in_place |= std::any_of(unit.flats.begin(), unit.flats.end(), [](const auto& flat) {
        return flat.parameter->trained() && !flat.parameter->converts_gradient();
      });
    }
    // What reduces them reads the ranks' gradients where they lie.
    const auto& reducing = groups.shard->size() > 1 ? groups.shard : group_;
    const auto make = [this, reducing](std::int64_t bytes) {
      const MemoryCategoryScope category(MemoryCategory::gradients);
      return agreement_.allocate(*collectives_, *reducing, bytes);
    };
    groups.gradient = std::make_unique<Slots>(computed, 0, reduced_in_place ? 1 : 0, make);
    groups.converted = std::make_unique<Slots>(converted, 0, 1, make);
  }
}

// Which gradients a unit has, and where they lie in its slots.
void FSDPRuntime::lay_out_gradients(FSDPUnit& unit) {
  unit.gradient_bytes = 0;
  unit.converted_bytes = 0;
  for (FSDPUnit::Flat& flat : unit.flats) {
    const FlatParameter& parameter = *flat.parameter;
    if (!parameter.trained()) continue;
    flat.gradient_offset = unit.gradient_bytes;
    unit.gradient_bytes += parameter.full_bytes();
    if (!parameter.converts_gradient()) continue;
    flat.converted_offset = unit.converted_bytes;
    unit.converted_bytes += parameter.reduced_bytes();
  }
}

void FSDPRuntime::trim_gradient_slots() {
  for (auto& [ranks, groups] : groups_) {
    groups.gradient->trim();
    groups.converted->trim();
  }
}

void FSDPRuntime::set_gradient_divide_factor(double factor) {
  check(factor > 0 && std::isfinite(factor), "[FSDP] the gradient divide factor is ", factor,
        "; it must be positive and finite");
  check(hook_name_.empty(), "[FSDP] a gradient divide factor and the communication hook '",
        hook_name_, "' exclude each other: the hook decides what gradients become");
  check_idle("the gradient divide factor");
  require_agreement(*group_, "[FSDP] gradient divide factors",
                    {str("gradient divide factor ", factor)});
  divide_factor_ = factor;
}

void FSDPRuntime::register_comm_hook(FSDPCommHook hook, const std::string& name) {
  check(static_cast<bool>(hook), "[FSDP] the communication hook is empty");
  check(!name.empty(), "[FSDP] a communication hook needs a name");
  check(hook_name_.empty(), "[FSDP] register_comm_hook() can only be called once: '", hook_name_,
        "' is registered");
  check(divide_factor_ == 0, "[FSDP] a communication hook and a gradient divide factor exclude ",
        "each other: the hook decides what gradients become");
  check_idle("a communication hook");
  require_agreement(*group_, "[FSDP] communication hooks", {"communication hook " + name});
  hook_ = std::move(hook);
  hook_name_ = name;
}

void FSDPRuntime::check_idle(const char* what) const {
  check(!in_forward() && current_backward() == 0, "[FSDP] ", what,
        " cannot be changed inside forward or backward");
}

void FSDPRuntime::discard_accumulation() {
  require_rest("discard_accumulation");
  for (FSDPUnit& unit : units_) {
    unit.accumulated = false;
    for (FSDPUnit::Flat& flat : unit.flats) std::fill(flat.used.begin(), flat.used.end(), false);
    give_back(unit.groups->gradient.get(), unit.gradient, {});
    give_back(unit.groups->converted.get(), unit.converted, {});
  }
  trim_gradient_slots();
}

// After the last gradient of a unit: they are reduced, or kept for a later backward.
void FSDPRuntime::end_gradients(FSDPUnit& unit) {
  const NoGrad no_grad;
  const bool used = std::any_of(unit.flats.begin(), unit.flats.end(),
                                [](const FSDPUnit::Flat& flat) { return any(flat.used); });
  bool kept = false;  // in the slot in which they were computed
  for (FSDPUnit::Flat& flat : unit.flats) {
    if (!flat.parameter->trained()) continue;
    const bool converts = flat.parameter->converts_gradient();
    const Tensor whole = flat.parameter->end_backward(converts ? flat.arrived : flat.used);
    if (!used) continue;
    if (converts) convert(unit, flat, whole);
    kept = kept || !converts;
  }
  if (used && sync_) {
    reduce(unit);
    return;
  }
  unit.accumulated = used;
  if (!kept) give_back(unit.groups->gradient.get(), unit.gradient, {});
}

// Brings a flat gradient into the dtype of its reduction, and adds it to what is there of earlier
// backwards without sync.
void FSDPRuntime::convert(FSDPUnit& unit, FSDPUnit::Flat& flat, const Tensor& whole) {
  if (!unit.converted.memory.defined()) {
    unit.converted = take_for_gradients(*unit.groups->converted, unit, unit.converted_bytes);
    Context::current().stream(Device::cpu()).wait(unit.converted.last_use);
  }
  Tensor target = reduced_row(unit, flat);
  if (unit.accumulated) {
    add_(target, whole);
  } else {
    target.copy_(whole);
  }
}

// Where a unit's gradient lies when it is reduced.
Tensor FSDPRuntime::reduced_row(const FSDPUnit& unit, const FSDPUnit::Flat& flat) const {
  const FlatParameter& parameter = *flat.parameter;
  const bool converts = parameter.converts_gradient();
  return typed_row(converts ? unit.converted.memory : unit.gradient.memory,
                   converts ? flat.converted_offset : flat.gradient_offset,
                   parameter.config().reduce, parameter.layout().total());
}

// Hands a unit's whole gradients to the ranks that own their parts, and the memory to the next.
void FSDPRuntime::reduce(FSDPUnit& unit) {
  const NoGrad no_grad;
  Event computed;
  Event converted;
  for (FSDPUnit::Flat& flat : unit.flats) {
    if (!flat.parameter->trained()) continue;
    Reduction reduction = start_reduction(unit, flat, reduced_row(unit, flat));
    Event& last_reader = flat.parameter->converts_gradient() ? converted : computed;
    // A later collective ends after an earlier one: they have one queue.
    if (!reduction.works.empty() && reduction.works.back().event().impl()) {
      last_reader = reduction.works.back().event();
    }
    if (offloading_ && !reduction.hooked.valid()) {
      offload(reduction, reduction.works.empty() ? Context::current().stream(Device::cpu()).record()
                                                 : reduction.works.back().event());
      last_reader = reduction.offloaded;
    }
    std::fill(flat.used.begin(), flat.used.end(), false);
    reductions_.push_back(std::move(reduction));
  }
  unit.accumulated = false;
  give_back(unit.groups->gradient.get(), unit.gradient, std::move(computed));
  give_back(unit.groups->converted.get(), unit.converted, std::move(converted));
}

// The reduced row goes to the host once `ready`, and the device's memory is free once it was read.
void FSDPRuntime::offload(Reduction& reduction, const Event& ready) {
  const Tensor row = reduction.row;
  const FlatParameter& parameter = *reduction.flat->parameter;
  const DType dtype =
      parameter.config().keep_low_precision ? parameter.config().reduce : parameter.dtype();
  const Tensor host = host_row(row.numel(), dtype, MemoryCategory::gradients, row.device());
  offloading_.wait(ready);
  const StreamScope scope(offloading_);
  Tensor(host).copy_(row);
  row.storage().record_stream(offloading_);
  reduction.offloaded = offloading_.record();
  reduction.row = host;
  // How early the device's memory is free depends on time; a rehearsal counts all of it.
  if (rehearsing()) reduction.on_device = row;
}

// A slot of its gradients, or of those in the reduction's dtype: without sync a piece that it
// keeps.
Slots::Slot FSDPRuntime::take_for_gradients(Slots& slots, const FSDPUnit& unit,
                                            std::int64_t bytes) {
  try {
    return sync_ ? slots.take() : slots.take_own(bytes);
  } catch (const AgreedOutOfMemory& error) {
    throw AgreedOutOfMemory(str("[FSDP] no room for the gradients of unit '", unit.label(),
                                "'; all ranks have given this step up: ", error.what()));
  }
}

// What the compute stream does with the piece needs no event: its next user works there too.
void FSDPRuntime::give_back(Slots* slots, Slots::Slot& slot, Event last_use) {
  if (!slot.memory.defined()) return;
  slot.last_use = std::move(last_use);
  slots->give_back(std::exchange(slot, {}));
}

FSDPRuntime::Reduction FSDPRuntime::start_reduction(const FSDPUnit& unit, FSDPUnit::Flat& flat,
                                                    const Tensor& whole) {
  const MemoryCategoryScope category(MemoryCategory::gradients);
  Reduction reduction{.flat = &flat,
                      .row = {},
                      .works = {},
                      .hooked = {},
                      .source = &whole.storage(),
                      .used = flat.used,
                      .offloaded = {},
                      .on_device = {}};
  const auto& shard = unit.groups->shard;
  const auto& replicate = unit.groups->replicate;
  const std::string owner = unit.label();
  // A rehearsal counts what is reduced without a hook.
  if (hook_ && group_->size() > 1 && !rehearsing()) {
    start_through_hook(unit, flat, whole, reduction);
    return reduction;
  }
  const bool mean = divide_factor_ == 0 || divide_factor_ == group_->size();
  const double scale = 1 / (mean ? group_->size() : divide_factor_);
  const comm::ReduceOp op = mean ? comm::ReduceOp::mean : comm::ReduceOp::sum;
  const comm::CollectiveOptions options{.scale = mean ? 1 : scale, .owner = owner};
  const bool replicated = replicate != nullptr && replicate->size() > 1;
  if (shard->size() > 1) {
    reduction.row = Tensor::empty({flat.parameter->layout().shard()}, whole.options());
    if (!replicated) {
      reduction.works.push_back(
          collectives_->reduce_scatter(*shard, reduction.row, whole, op, options));
      return reduction;
    }
    // Between the two sums lies a rounding. f16, which ends at 65504, is divided before it.
    const bool early = whole.dtype() == f16;
    reduction.works.push_back(
        collectives_->reduce_scatter(*shard, reduction.row, whole, comm::ReduceOp::sum,
                                     {.scale = early ? scale : 1, .owner = owner}));
    reduction.works.push_back(
        collectives_->all_reduce(*replicate, reduction.row, comm::ReduceOp::sum,
                                 {.scale = early ? 1 : scale, .owner = owner}));
  } else if (replicated) {
    reduction.works.push_back(collectives_->all_reduce(*replicate, whole, op, options));
    if (!offloading_) reduction.works.back().wait();
    reduction.row = offloading_ ? whole : whole.clone();  // the slot goes to the next unit
  } else {
    reduction.row = offloading_ ? whole : whole.clone();
    if (!mean) mul_(reduction.row, scale);
  }
  return reduction;
}

void FSDPRuntime::start_through_hook(const FSDPUnit& unit, const FSDPUnit::Flat& flat,
                                     const Tensor& whole, Reduction& reduction) {
  reduction.row = Tensor::empty({flat.parameter->layout().shard()}, whole.options());
  const auto& replicate = unit.groups->replicate;
  const FSDPGradient view{
      .index = static_cast<int>(reductions_.size()),
      .unit = unit.label(),
      .whole = whole,
      .row = reduction.row,
      .shard_group = unit.groups->shard,
      .replicate_group = replicate && replicate->size() > 1 ? replicate : nullptr};
  reduction.hooked = hook_(view);
  check(reduction.hooked.valid(), "[FSDP] the communication hook '", hook_name_,
        "' returned no work for unit '", unit.label(), "' (rank ", group_->rank(),
        "); return BucketWork::after(work, result) or BucketWork::done(result)");
  reduction.works.push_back(reduction.hooked.work());
}

// This rank's part, when it has come.
Tensor FSDPRuntime::result_of(const Reduction& reduction) const {
  for (const comm::Work& work : reduction.works) work.wait();
  if (!reduction.hooked.valid()) return reduction.row;
  const Tensor result = reduction.hooked.wait();
  const Tensor& row = reduction.row;
  check(result.defined() && result.numel() == row.numel() && result.dtype() == row.dtype() &&
            result.is_contiguous(),
        "[FSDP] the communication hook '", hook_name_, "' must return ", row.numel(),
        " elements of ", row.dtype(), " for unit '", reduction.flat->parameter->config().name,
        "' (rank ", group_->rank(), "), and returned ",
        result.defined() ? str(result.numel(), " of ", result.dtype()) : "nothing");
  check(&result.storage() != reduction.source, "[FSDP] the communication hook '", hook_name_,
        "' returned memory of `whole` for unit '", reduction.flat->parameter->config().name,
        "' (rank ", group_->rank(), "), which is another unit's by now; write the result to `row`");
  if (result.is_same(row)) return row;
  Tensor(row).copy_(result.reshape({-1}));  // memory of the hook's own choice stays the hook's
  return row;
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

// At the end of a synchronising backward.
void FSDPRuntime::finish_reductions() {
  // Units that only earlier backwards without sync came to.
  for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
    if (unit->accumulated) reduce(*unit);
  }
  exchange_used();
  for (Reduction& reduction : std::exchange(reductions_, {})) {
    const Stream& compute = Context::current().stream(Device::cpu());
    Tensor row = result_of(reduction);
    if (offloading_) {
      if (reduction.hooked.valid()) {
        offload(reduction, compute.record());
        row = reduction.row;
      }
      compute.wait(reduction.offloaded);
    }
    reduction.row = {};
    reduction.on_device = {};
    reduction.flat->parameter->take_gradient(row, reduction.used);
  }
}

}  // namespace cohort::parallel
