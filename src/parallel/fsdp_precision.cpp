// What a unit converts, and what the caller may change between steps.

#include <optional>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "parallel/fsdp_runtime.h"

namespace cohort::parallel {
namespace {

constexpr const char* kManager = "FSDP";

}  // namespace

// Of a module that is kept in full precision: the dtype of its first floating parameter or buffer.
std::optional<DType> own_dtype(const UnitPlan& plan, const FSDPUnitOptions& options) {
  if (!plan.full_precision || options.mixed_precision.param_dtype) return {};
  for (const auto* list : {&plan.parameters, &plan.buffers}) {
    for (const auto& [name, tensor] : *list) {
      if (is_floating(tensor.dtype())) return tensor.dtype();
    }
  }
  return f32;
}

// Converts what the unit's precision says; returns the dtype that its outputs are to have.
std::optional<DType> FSDPRuntime::cast_inputs(const FSDPUnit& unit,
                                              std::span<Tensor> inputs) const {
  const FSDPMixedPrecision& precision = unit.options.mixed_precision;
  const bool casts =
      precision.cast_forward_inputs || (unit.root && precision.cast_root_forward_inputs);
  const std::optional<DType>& wanted = unit.own_dtype ? unit.own_dtype : precision.param_dtype;
  const bool cast = wanted && (unit.own_dtype || casts);
  std::optional<DType> first;
  for (Tensor& input : inputs) {
    if (!input.defined() || !is_floating(input.dtype())) continue;
    if (!first) first = input.dtype();
    if (cast && input.dtype() != *wanted) input = input.to(*wanted);
  }
  return unit.own_dtype && !precision.output_dtype ? first : precision.output_dtype;
}

void FSDPRuntime::cast_outputs(const FSDPCall& call, std::span<Tensor> outputs) {
  if (!call.outputs) return;
  for (Tensor& output : outputs) {
    if (!output.defined() || !is_floating(output.dtype())) continue;
    if (output.dtype() != *call.outputs) output = output.to(*call.outputs);
  }
}

// Freezing a parameter takes its hooks away, so those that are trained anew get them again.
void FSDPRuntime::watch_gradients(FSDPUnit& unit, FSDPUnit::Flat& flat) {
  for (std::size_t i = 0; i < flat.parameter->size(); ++i) {
    const Tensor& parameter = flat.parameter->parameters()[i].tensor;
    if (!flat.parameter->trained(i) || grad_manager(parameter) == kManager) continue;
    set_grad_manager(parameter, kManager);
    unit.hooks.push_back(register_post_accumulate_grad_hook(
        parameter, [weak = weak_from_this(), &unit, &flat, i](const Tensor&) {
          if (const auto self = weak.lock()) self->on_gradient(unit, flat, i);
        }));
  }
}

// What the caller has done to the module since the last step.
void FSDPRuntime::follow_module() {
  bool changed = false;
  for (FSDPUnit& unit : units_) {
    for (FSDPUnit::Flat& flat : unit.flats) {
      if (!flat.parameter->exchanged()) flat.parameter->check_rows();
      changed = changed || flat.parameter->trainability_changed();
    }
  }
  for (const FSDPUnit& unit : units_) {
    if (!changed) break;
    check<AutogradError>(!unit.accumulated && backward_ == 0,
                         "[FSDP] parameters were frozen or unfrozen while unit '", unit.label(),
                         "' keeps gradients of backwards without sync (rank ", group_->rank(),
                         "); do it after a backward outside no_sync()");
  }
  for (FSDPUnit& unit : units_) {
    for (FSDPUnit::Flat& flat : unit.flats) {
      if (changed) flat.parameter->update_trained();
      watch_gradients(unit, flat);  // also where one was frozen and unfrozen again
    }
    if (changed) lay_out_gradients(unit);
  }
  if (changed) make_gradient_slots();
}

}  // namespace cohort::parallel
