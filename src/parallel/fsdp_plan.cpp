#include "cohort/parallel/fsdp_plan.h"

#include <algorithm>
#include <ostream>

#include "cohort/core/error.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/fsdp_runtime.h"

namespace cohort {
namespace parallel {

FSDPPlan FSDPEngine::plan() const {
  FSDPPlan plan;
  plan.world_size = runtime_->group()->size();
  std::int64_t largest_full = 0;
  std::int64_t largest_gradient = 0;
  std::int64_t largest_converted = 0;
  bool in_place = false;
  std::int64_t root_full = 0;
  for (const FSDPUnit& unit : runtime_->units()) {
    FSDPPlan::Unit& row = plan.units.emplace_back();
    row.name = unit.name;
    row.shard_size = unit.groups->shard->size();
    const bool twice = !unit.keeps_after_forward();
    for (const FSDPUnit::Flat& flat : unit.flats) {
      const FlatParameter& parameter = *flat.parameter;
      FSDPPlan::Flat& entry = row.flats.emplace_back();
      entry.dtype = parameter.dtype();
      entry.compute = parameter.config().compute;
      entry.trained = parameter.trained();
      entry.resident = parameter.resident();
      entry.elements = parameter.layout().total();
      entry.shard = parameter.layout().shard();
      for (const auto& [name, tensor] : parameter.parameters()) entry.parameters.push_back(name);
      const auto shard_bytes =
          entry.shard * static_cast<std::int64_t>(item_size(parameter.dtype()));
      plan.parameter_bytes += shard_bytes;
      if (!parameter.resident()) {
        const std::int64_t times = twice ? 2 : 1;
        plan.all_gathers += times;
        plan.gathered_bytes += times * parameter.full_bytes();
      } else if (parameter.config().compute != parameter.dtype()) {
        plan.parameter_bytes += parameter.full_bytes() / row.shard_size;
      }
      if (!parameter.trained()) continue;
      const bool low = parameter.config().keep_low_precision;
      const DType kept = low ? parameter.config().reduce : parameter.dtype();
      plan.gradient_bytes += entry.shard * static_cast<std::int64_t>(item_size(kept));
      plan.adam_bytes += 2 * shard_bytes;
      const auto whole = parameter.layout().total() *
                         static_cast<std::int64_t>(item_size(parameter.config().reduce));
      if (row.shard_size > 1) {
        ++plan.reduce_scatters;
        plan.reduced_bytes += whole;
        if (row.shard_size < plan.world_size) {
          ++plan.all_reduces;
          plan.reduced_bytes += whole / row.shard_size;
        }
      } else if (plan.world_size > 1) {
        ++plan.all_reduces;
        plan.reduced_bytes += whole;
      }
    }
    (unit.root ? root_full : largest_full) =
        std::max(unit.root ? root_full : largest_full, unit.full_bytes);
    largest_gradient = std::max(largest_gradient, unit.gradient_bytes);
    largest_converted = std::max(largest_converted, unit.converted_bytes);
    in_place |= std::any_of(unit.flats.begin(), unit.flats.end(), [](const auto& flat) {
      return flat.parameter->trained() && !flat.parameter->converts_gradient();
    });
  }
  // Units that drop their parameters after forward take turns in two slots.
  std::int64_t slots = 0;
  bool turns = false;
  for (const FSDPUnit& unit : runtime_->units()) {
    if (unit.root || unit.full_bytes == 0) continue;
    if (unit.keeps_after_forward()) {
      ++slots;
    } else {
      turns = true;
    }
  }
  plan.gathered_peak_bytes = root_full + (slots + (turns ? 2 : 0)) * largest_full;
  // The root's and that of the unit that computes; beside them one that is being reduced, or two in
  // the reduction's dtype.
  plan.gradient_peak_bytes = (in_place ? 3 : 2) * largest_gradient + 2 * largest_converted;
  return plan;
}

}  // namespace parallel

std::ostream& operator<<(std::ostream& out, const FSDPPlan& plan) {
  out << "world " << plan.world_size << '\n';
  for (const FSDPPlan::Unit& unit : plan.units) {
    for (const FSDPPlan::Flat& flat : unit.flats) {
      out << "unit " << (unit.name.empty() ? "root" : unit.name) << " (over " << unit.shard_size
          << " ranks): " << flat.parameters.size() << " parameters, " << flat.elements
          << " elements of " << flat.dtype;
      if (flat.compute != flat.dtype) out << " (computed in " << flat.compute << ')';
      out << ", " << flat.shard << " per rank" << (flat.trained ? "" : ", frozen")
          << (flat.resident ? ", not moved" : "") << '\n';
    }
  }
  out << "a step: " << plan.all_gathers << " all_gather of " << plan.gathered_bytes << " bytes, "
      << plan.reduce_scatters << " reduce_scatter and " << plan.all_reduces << " all_reduce of "
      << plan.reduced_bytes << " bytes\n"
      << "at rest: parameters " << plan.parameter_bytes << ", gradients " << plan.gradient_bytes
      << ", Adam " << plan.adam_bytes << " bytes; beside that at most " << plan.gathered_peak_bytes
      << " gathered and " << plan.gradient_peak_bytes << " of whole gradients\n";
  return out;
}

}  // namespace cohort
