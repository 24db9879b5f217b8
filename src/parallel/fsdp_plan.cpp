// What a step will do: from the layouts, or from a step on the meta device.

#include "cohort/parallel/fsdp_plan.h"

#include <algorithm>
#include <deque>
#include <map>
#include <set>

#include "cohort/core/error.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/fsdp_runtime.h"

namespace cohort {
namespace parallel {
namespace {

using comm::Operation;

std::int64_t bytes_of(std::int64_t elements, DType dtype) {
  return elements * static_cast<std::int64_t>(item_size(dtype));
}

FSDPPlan::Unit plan_unit(const FSDPUnit& unit) {
  FSDPPlan::Unit row;
  row.name = unit.name;
  row.strategy = name(unit.options.sharding_strategy);
  row.shard_size = unit.groups->shard->size();
  for (const FSDPUnit::Flat& flat : unit.flats) {
    const FlatParameter& parameter = *flat.parameter;
    FSDPPlan::Flat& entry = row.flats.emplace_back();
    entry.dtype = parameter.dtype();
    entry.compute = parameter.config().compute;
    entry.reduce = parameter.config().reduce;
    entry.gradient = parameter.config().keep_low_precision ? entry.reduce : entry.dtype;
    entry.trained = parameter.trained();
    entry.resident = parameter.resident();
    entry.offloaded = parameter.config().offload;
    entry.elements = parameter.layout().total();
    entry.shard = parameter.layout().shard();
    for (const auto& [name, tensor] : parameter.parameters()) entry.parameters.push_back(name);
  }
  return row;
}

// What lives between steps.
void add_rest(FSDPPlan& plan, const FSDPPlan::Unit& unit) {
  for (const FSDPPlan::Flat& flat : unit.flats) {
    const std::int64_t shard = bytes_of(flat.shard, flat.dtype);
    (flat.offloaded ? plan.offloaded_bytes : plan.parameter_bytes) += shard;
    // A shared buffer of converted values lies beside the shards.
    if (flat.resident && flat.compute != flat.dtype) {
      plan.parameter_bytes += bytes_of(flat.shard, flat.compute);
    }
    if (!flat.trained) continue;
    (flat.offloaded ? plan.offloaded_bytes : plan.gradient_bytes) +=
        bytes_of(flat.shard, flat.gradient);
    plan.adam_bytes += 2 * shard;
  }
}

// The collectives of a model that calls each unit once, in the order of the list from its end: the
// root first, then units as they are registered.
class AssumedStep {
 public:
  explicit AssumedStep(const FSDPRuntime& runtime) : runtime_(runtime) {}

  std::vector<FSDPPlan::Collective> collectives() {
    std::vector<const FSDPUnit*> order{&runtime_.units().back()};
    for (const FSDPUnit& unit : runtime_.units()) {
      if (!unit.root) order.push_back(&unit);
    }
    if (runtime_.fences()) note(*runtime_.group(), Operation::barrier, DType::u8, 0, "shards");
    for (const FSDPUnit* unit : order) gather(*unit);
    const std::set<const FSDPUnit*> there = still_there(order);
    std::int64_t trained = 1;  // the flags are never empty
    for (auto unit = order.rbegin(); unit != order.rend(); ++unit) {
      if (!(*unit)->keeps_after_forward() && !there.contains(*unit)) gather(**unit);
      for (const FSDPUnit::Flat& flat : (*unit)->flats) {
        if (!flat.parameter->trained()) continue;
        trained += static_cast<std::int64_t>(flat.parameter->size());
        reduce(**unit, *flat.parameter);
      }
    }
    if (runtime_.group()->size() > 1) {
      note(*runtime_.group(), Operation::all_reduce, DType::u8, trained, "used parameters");
    }
    return std::move(list_);
  }

 private:
  // Forward as Slots sees it: the units whose parameters are in its free pieces at the end.
  static std::set<const FSDPUnit*> still_there(const std::vector<const FSDPUnit*>& order) {
    struct Pieces {
      std::deque<const FSDPUnit*> free;  // by their tenants, oldest first
      int count = 0;
    };
    std::map<const FSDPGroups*, Pieces> all;
    for (const FSDPUnit* unit : order) {
      if (unit->keeps_after_forward() || unit->full_bytes == 0) continue;
      Pieces& pieces = all[unit->groups];
      if (!pieces.free.empty() && pieces.count >= FSDPRuntime::kFullSlots) {
        pieces.free.pop_front();
      } else {
        ++pieces.count;
      }
      pieces.free.push_back(unit);
    }
    std::set<const FSDPUnit*> there;
    for (const auto& [groups, pieces] : all) {
      there.insert(pieces.free.begin(), pieces.free.end());
    }
    return there;
  }

  void note(const comm::ProcessGroup& group, Operation operation, DType dtype,
            std::int64_t elements, const std::string& owner, bool symmetric = false,
            bool in_place = false) {
    list_.push_back({operation, owner, group.size(), dtype, elements, bytes_of(elements, dtype),
                     group.expected_bytes(operation, dtype, elements, symmetric, in_place)});
  }

  void gather(const FSDPUnit& unit) {
    for (const FSDPUnit::Flat& flat : unit.flats) {
      const FlatParameter& parameter = *flat.parameter;
      if (parameter.resident()) continue;
      const DType compute = parameter.config().compute;
      const comm::ProcessGroup& group = *unit.groups->shard;
      note(group, Operation::all_gather, compute, parameter.layout().total(), unit.label(),
           group.size() > 1, compute != parameter.dtype() || parameter.config().offload);
    }
  }

  void reduce(const FSDPUnit& unit, const FlatParameter& parameter) {
    const FlatParameter::Config& config = parameter.config();
    const std::int64_t total = parameter.layout().total();
    const FSDPGroups& groups = *unit.groups;
    if (groups.shard->size() > 1) {
      note(*groups.shard, Operation::reduce_scatter, config.reduce, total, unit.label(), true);
    }
    if (!groups.replicate || groups.replicate->size() == 1) return;
    const bool whole = groups.shard->size() == 1;
    note(*groups.replicate, Operation::all_reduce, config.reduce,
         whole ? total : parameter.layout().shard(), unit.label(), whole);
  }

  const FSDPRuntime& runtime_;
  std::vector<FSDPPlan::Collective> list_;
};

// Upper bounds of gathered parameters and whole gradients.
void add_bounds(FSDPPlan& plan, const FSDPRuntime& runtime) {
  for (const auto& [ranks, groups] : runtime.groups()) {
    std::int64_t kept = 0;
    bool turns = false;
    for (const FSDPUnit& unit : runtime.units()) {
      if (unit.groups != &groups || unit.full_bytes == 0) continue;
      if (unit.keeps_after_forward()) {
        kept += unit.full_bytes;
      } else {
        turns = true;  // units that drop their parameters take turns in two slots
      }
    }
    plan.rise[static_cast<std::size_t>(MemoryCategory::parameters)] +=
        kept + (turns ? FSDPRuntime::kFullSlots * groups.full->bytes() : 0);
    // The root's and that of the unit that computes; beside them one that is being reduced, or two
    // in the reduction's dtype.
    plan.rise[static_cast<std::size_t>(MemoryCategory::gradients)] +=
        (2 + groups.gradient->spare()) * groups.gradient->bytes() + 2 * groups.converted->bytes();
  }
  std::int64_t rows = plan.gradient_bytes;
  for (const FSDPPlan::Unit& unit : plan.units) {
    for (const FSDPPlan::Flat& flat : unit.flats) {
      if (flat.offloaded && flat.trained) rows += bytes_of(flat.shard, flat.reduce);
    }
  }
  plan.rise[static_cast<std::size_t>(MemoryCategory::gradients)] += rows;
  for (const std::int64_t bytes : plan.rise) plan.rise_total += bytes;
}

FSDPPlan::ByCategory rise_of(const FSDPRuntime::StepRecord& step) {
  FSDPPlan::ByCategory rise{};
  for (std::size_t i = 0; i < rise.size(); ++i) {
    rise[i] = step.after.peak[i] - step.before.live[i];
  }
  return rise;
}

FSDPPlan layout_plan(const FSDPRuntime& runtime) {
  FSDPPlan plan;
  plan.world_size = runtime.group()->size();
  for (const FSDPUnit& unit : runtime.units()) {
    plan.units.push_back(plan_unit(unit));
    add_rest(plan, plan.units.back());
  }
  // What every rank has whole.
  for (const Tensor& tensor : runtime.unsharded()) {
    const auto bytes = static_cast<std::int64_t>(tensor.bytes());
    constexpr auto kLine = static_cast<std::int64_t>(kMemoryAlignment);
    plan.parameter_bytes += (bytes + kLine - 1) / kLine * kLine;
  }
  return plan;
}

}  // namespace

const FSDPPlan& FSDPEngine::plan() {
  planned_ = layout_plan(*runtime_);
  planned_->collectives = AssumedStep(*runtime_).collectives();
  add_bounds(*planned_, *runtime_);
  runtime_->record_next_step();
  return *planned_;
}

const FSDPPlan& FSDPEngine::plan(const std::function<void()>& step) {
  FSDPPlan plan = layout_plan(*runtime_);
  const FSDPRuntime::StepRecord record = runtime_->rehearse(step, plan.collectives);
  plan.rehearsed = true;
  plan.rise = rise_of(record);
  plan.rise_total = record.after.peak_total - record.before.live_total;
  runtime_->record_next_step();
  return planned_.emplace(std::move(plan));
}

FSDPPlanCheck FSDPEngine::check_plan() const {
  check(planned_.has_value(), "[check_plan] there is no plan; call plan() before the step");
  const auto& step = runtime_->step_record();
  check(step && step->complete,
        "[check_plan] no step has ended since plan(): a forward and a synchronising backward");
  FSDPPlanCheck result;
  for (const Operation operation : {Operation::all_gather, Operation::reduce_scatter,
                                    Operation::all_reduce, Operation::barrier}) {
    comm::OperationStats counted;
    for (std::size_t g = 0; g < step->groups_after.size(); ++g) {
      const comm::OperationStats& before = step->groups_before[g].of(operation);
      const comm::OperationStats& after = step->groups_after[g].of(operation);
      counted.count += after.count - before.count;
      counted.logical_bytes += after.logical_bytes - before.logical_bytes;
      counted.moved_bytes += after.moved_bytes - before.moved_bytes;
    }
    const std::string title = str(operation);
    result.rows.push_back({title + ": calls", planned_->count(operation), counted.count});
    result.rows.push_back(
        {title + ": logical bytes", planned_->logical_bytes(operation), counted.logical_bytes});
    result.rows.push_back(
        {title + ": moved bytes", planned_->moved_bytes(operation), counted.moved_bytes});
  }
  const std::int64_t at_rest =
      step->before.live[static_cast<std::size_t>(MemoryCategory::parameters)];
  result.rows.push_back({"parameters at rest", planned_->parameter_bytes, at_rest});
  if (!planned_->rehearsed) return result;
  const FSDPPlan::ByCategory rise = rise_of(*step);
  for (const MemoryCategory category :
       {MemoryCategory::parameters, MemoryCategory::gradients, MemoryCategory::activations,
        MemoryCategory::communication}) {
    const auto i = static_cast<std::size_t>(category);
    result.rows.push_back({str("rise of ", name(category)), planned_->rise[i], rise[i]});
  }
  result.rows.push_back(
      {"peak", planned_->peak_bytes(), at_rest + step->after.peak_total - step->before.live_total});
  return result;
}

}  // namespace parallel

namespace {

template <typename Value>
std::int64_t sum_of(const FSDPPlan& plan, comm::Operation operation, Value value) {
  std::int64_t sum = 0;
  for (const FSDPPlan::Collective& one : plan.collectives) {
    if (one.operation == operation) sum += value(one);
  }
  return sum;
}

}  // namespace

std::int64_t FSDPPlan::count(comm::Operation operation) const {
  return sum_of(*this, operation, [](const Collective&) { return 1; });
}

std::int64_t FSDPPlan::logical_bytes(comm::Operation operation) const {
  return sum_of(*this, operation, [](const Collective& one) { return one.logical_bytes; });
}

std::int64_t FSDPPlan::moved_bytes(comm::Operation operation) const {
  return sum_of(*this, operation, [](const Collective& one) { return one.moved_bytes; });
}

std::int64_t FSDPPlan::moved_bytes() const {
  std::int64_t sum = 0;
  for (const Collective& one : collectives) sum += one.moved_bytes;
  return sum;
}

double FSDPPlanCheck::Row::ratio() const {
  if (planned == measured) return 1;
  return static_cast<double>(measured) / static_cast<double>(planned);
}

const FSDPPlanCheck::Row& FSDPPlanCheck::row(std::string_view what) const {
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.what == what; });
  check(found != rows.end(), "[check_plan] there is no row '", what, "'");
  return *found;
}

}  // namespace cohort
