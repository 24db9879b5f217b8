// Plans as tables.

#include <iomanip>
#include <ostream>
#include <sstream>

#include "cohort/core/error.h"
#include "cohort/parallel/fsdp_plan.h"

namespace cohort {
namespace {

// Columns as wide as their longest entry; the first is left-aligned, the others right-aligned.
class Table {
 public:
  explicit Table(std::vector<std::string> titles) { add(std::move(titles)); }
  void add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], row[i].size());
    rows_.push_back(std::move(row));
  }
  void print(std::ostream& out) const {
    for (const std::vector<std::string>& row : rows_) {
      for (std::size_t i = 0; i < row.size(); ++i) {
        const auto pad = widths_[i] - row[i].size();
        out << "  " << (i == 0 ? row[i] : std::string(pad, ' ') + row[i]);
        if (i == 0 && row.size() > 1) out << std::string(pad, ' ');
      }
      out << '\n';
    }
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> widths_;
};

std::string dtypes(const FSDPPlan::Flat& flat) {
  return flat.compute == flat.dtype ? str(flat.dtype) : str(flat.dtype, " in ", flat.compute);
}

void print_units(std::ostream& out, const FSDPPlan& plan) {
  Table table({"unit", "strategy", "ranks", "parameters", "dtype", "elements", "per rank", ""});
  for (const FSDPPlan::Unit& unit : plan.units) {
    for (const FSDPPlan::Flat& flat : unit.flats) {
      const std::string kind =
          str(flat.trained ? "" : "frozen", !flat.trained && flat.resident ? ", " : "",
              flat.resident ? "not moved" : "");
      table.add({unit.name.empty() ? "root" : unit.name, unit.strategy, str(unit.shard_size),
                 str(flat.parameters.size()), dtypes(flat), str(flat.elements), str(flat.shard),
                 kind});
    }
  }
  table.print(out);
}

// Neighbours of one kind are one line.
void print_collectives(std::ostream& out, const FSDPPlan& plan) {
  Table table({"collective", "of", "ranks", "logical bytes", "moved bytes"});
  for (const FSDPPlan::Collective& one : plan.collectives) {
    table.add({str(one.operation), one.owner, str(one.ranks), str(one.logical_bytes),
               str(one.moved_bytes)});
  }
  table.add({"all", "", "", "", str(plan.moved_bytes())});
  table.print(out);
}

}  // namespace

std::ostream& operator<<(std::ostream& out, const FSDPPlan& plan) {
  out << "FSDP plan of one of " << plan.world_size << " ranks, in bytes\n";
  print_units(out, plan);
  out << (plan.rehearsed ? "a step:\n" : "a step that calls each unit once:\n");
  print_collectives(out, plan);
  Table memory({"memory", "at rest", "rise in a step"});
  for (int i = 0; i < kMemoryCategoryCount; ++i) {
    const auto category = static_cast<MemoryCategory>(i);
    const std::int64_t rest = category == MemoryCategory::parameters  ? plan.parameter_bytes
                              : category == MemoryCategory::gradients ? plan.gradient_bytes
                              : category == MemoryCategory::optimizer ? plan.adam_bytes
                                                                      : 0;
    const std::int64_t rise = plan.rise[static_cast<std::size_t>(i)];
    if (rest > 0 || rise > 0) memory.add({std::string(name(category)), str(rest), str(rise)});
  }
  memory.add({"together", str(plan.parameter_bytes + plan.gradient_bytes + plan.adam_bytes),
              str(plan.rise_total)});
  memory.print(out);
  out << "  (gradients rise from none; the optimizer is one with two values per element"
      << (plan.rehearsed ? ")\n"
                         : "; activations are not included, and the rise is an upper bound: give "
                           "plan() example inputs)\n");
  return out;
}

std::ostream& operator<<(std::ostream& out, const FSDPPlanCheck& check) {
  Table table({"", "planned", "measured", "ratio"});
  for (const FSDPPlanCheck::Row& row : check.rows) {
    std::ostringstream ratio;
    ratio << std::fixed << std::setprecision(4) << row.ratio();
    table.add({row.what, str(row.planned), str(row.measured), ratio.str()});
  }
  table.print(out);
  return out;
}

}  // namespace cohort
