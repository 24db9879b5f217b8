// Bringing a model into units, and out of them.

#include <algorithm>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "parallel/broadcast.h"
#include "parallel/fsdp_runtime.h"

namespace cohort::parallel {

void FSDPRuntime::form_units(MetaInitializer& initializer) {
  std::vector<UnitPlan> plans = cut_into_units(module_, options_);
  const bool taken = std::any_of(plans.begin(), plans.end(), [&](const UnitPlan& plan) {
    return plan.module != &module_ && !plan.full_precision;
  });
  if (options_.auto_wrap_policy.decide && !taken && group_->rank() == 0) {
    logging::warn(str("[FSDP] the policy ", options_.auto_wrap_policy.text,
                      " takes no module; the whole model is one unit"));
  }
  // In the order in which modules are initialised; a unit comes after all that is in it, and is
  // shared out before the next module gets memory.
  std::size_t next = 0;
  std::exception_ptr error;
  module_.apply([&](nn::Module& module) {
    try {
      if (!error) initializer.initialise(module);
    } catch (...) {
      error = std::current_exception();
    }
    if (next == plans.size() || plans[next].module != &module) return;
    if (initializer.active()) agreement_.settle(error, "to initialise parameters");
    form_unit(std::move(plans[next++]));
  });
  make_slots();
  std::int64_t parameters = 0;
  for (const FSDPUnit& unit : units_) {
    for (const FSDPUnit::Flat& flat : unit.flats) {
      parameters += static_cast<std::int64_t>(flat.parameter->size());
    }
  }
  const MemoryCategoryScope category(MemoryCategory::communication);
  used_flags_ = Tensor::empty({1 + parameters}, {.dtype = u8});
}

void FSDPRuntime::form_unit(UnitPlan plan) {
  FSDPUnit& unit = units_.emplace_back();
  unit.module = plan.module;
  unit.name = plan.name;
  unit.root = plan.module == &module_;
  unit.options = options_of_unit(options_, *unit.module, unit.name);
  unit.own_dtype = own_dtype(plan, unit.options);
  unit.reshard_after_forward = reshards_after_forward(unit.options.sharding_strategy);
  give_groups(unit);
  if (options_.sync_module_states) sync_parameters(plan.parameters);
  add_flats(unit, std::move(plan.parameters));
  lay_out_gradients(unit);
}

// Rank 0's values for all.
void FSDPRuntime::sync_parameters(const std::vector<nn::NamedTensor>& parameters) const {
  if (group_->size() == 1) return;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.is_contiguous()) {
      group_->broadcast(tensor.detach(), 0, {.owner = "initial state"}).wait();
    } else {
      broadcast_coalesced(*group_, {tensor}, 0, "initial state");
    }
  }
}

// All ranks have failed. The last unit first: each then finds the room that it had before.
void FSDPRuntime::give_up_construction(MetaInitializer& initializer) noexcept {
  release_parameters();
  initializer.undo();
  try {
    for (auto unit = units_.rbegin(); unit != units_.rend(); ++unit) {
      for (; !unit->flats.empty(); unit->flats.pop_back()) {
        FlatParameter& parameter = *unit->flats.back().parameter;
        const auto& members = parameter.parameters();
        if (std::all_of(members.begin(), members.end(), is_on_meta_device)) continue;
        parameter.give_back(parameter.whole_memory());
        initializer.undo();  // of those that were there among them
      }
    }
  } catch (const std::exception& error) {
    logging::warn(str("[FSDP] parameters stay rows after a failed construction: ", error.what()));
  }
  units_.clear();
}

void FSDPRuntime::restore() {
  require_rest("restore");
  reset();
  std::vector<Tensor> wholes;
  std::exception_ptr error;
  try {
    for (const FSDPUnit& unit : units_) {
      for (const FSDPUnit::Flat& flat : unit.flats) {
        wholes.push_back(flat.parameter->whole_memory());
      }
    }
  } catch (const OutOfMemory&) {
    wholes.clear();
    error = std::current_exception();
  }
  agreement_.settle(error, "to restore the parameters");
  release_parameters();
  std::size_t next = 0;
  for (FSDPUnit& unit : units_) {
    for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->give_back(wholes[next++]);
    unit.flats.clear();
  }
}

}  // namespace cohort::parallel
