#include "parallel/fsdp_unit.h"

#include <algorithm>
#include <map>
#include <unordered_map>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::parallel {
namespace {

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + '.' + name;
}

bool is_inside(const std::string& name, const std::string& module) {
  return name == module || name.starts_with(module + '.');
}

// The modules of a tree with their parents, children before their parents.
struct Walk {
  struct Entry {
    nn::Module* module;
    std::string name;
    nn::Module* parent;
    std::int64_t elements = 0;  // its own, and what its children have not given to a unit
    bool unit = false;
    bool full_precision = false;
  };
  std::vector<Entry> entries;
  // Further places of modules that several parents share.
  std::vector<std::pair<nn::Module*, nn::Module*>> shared;  // module, parent

  void visit(nn::Module& module, const std::string& name, nn::Module* parent) {
    const auto same = [&](const Entry& entry) { return entry.module == &module; };
    if (std::any_of(entries.begin(), entries.end(), same)) {
      shared.emplace_back(&module, parent);
      return;
    }
    for (const nn::NamedModule& child : module.named_children()) {
      visit(*child.module, joined(name, child.name), &module);
    }
    entries.push_back({&module, name, parent});
  }
};

// The names from `module` up to the root: itself first.
std::vector<nn::Module*> ancestry(nn::Module* module,
                                  const std::unordered_map<nn::Module*, nn::Module*>& owner_above) {
  std::vector<nn::Module*> line{module};
  for (auto up = owner_above.find(module); up != owner_above.end() && up->second != nullptr;
       up = owner_above.find(up->second)) {
    line.push_back(up->second);
  }
  return line;
}

}  // namespace

bool is_ignored(const FSDPOptions& options, const std::string& parameter) {
  const auto listed = [&](const std::string& name) { return name == parameter; };
  const auto inside = [&](const std::string& module) { return is_inside(parameter, module); };
  return std::any_of(options.ignored_parameters.begin(), options.ignored_parameters.end(),
                     listed) ||
         std::any_of(options.ignored_modules.begin(), options.ignored_modules.end(), inside);
}

bool keeps_full_precision(const FSDPOptions& options, const nn::Module& module,
                          const std::string& name) {
  const FSDPMixedPrecision& precision = options.mixed_precision;
  if (!precision.param_dtype && !precision.reduce_dtype && !precision.buffer_dtype) return false;
  if (!precision.keep_full_precision.decide || is_ignored(options, name)) return false;
  std::int64_t elements = 0;
  for (const Tensor& parameter : module.parameters()) elements += parameter.numel();
  return precision.keep_full_precision.decide(module, name, elements);
}

FSDPUnitOptions options_of_unit(const FSDPOptions& options, const nn::Module& module,
                                const std::string& name) {
  FSDPUnitOptions general{options.sharding_strategy, options.mixed_precision};
  if (keeps_full_precision(options, module, name)) general.mixed_precision = {};
  return options.unit_options ? options.unit_options(module, name, general) : general;
}

std::vector<UnitPlan> cut_into_units(nn::Module& root, const FSDPOptions& options) {
  const WrapPolicy& policy = options.auto_wrap_policy;
  Walk walk;
  walk.visit(root, "", nullptr);

  std::unordered_map<nn::Module*, std::size_t> index;
  for (std::size_t i = 0; i < walk.entries.size(); ++i) index[walk.entries[i].module] = i;
  for (Walk::Entry& entry : walk.entries) {
    for (const nn::NamedTensor& own : entry.module->named_parameters(false)) {
      if (is_ignored(options, joined(entry.name, own.name))) continue;
      entry.elements += own.tensor.numel();
    }
    entry.full_precision = keeps_full_precision(options, *entry.module, entry.name);
    entry.unit = entry.parent == nullptr || entry.full_precision ||
                 (policy.decide && entry.elements > 0 &&
                  policy.decide(*entry.module, entry.name, entry.elements));
    if (!entry.unit) walk.entries[index[entry.parent]].elements += entry.elements;
  }

  // The unit of each module, and the unit above each unit: parents come later in the list.
  std::unordered_map<nn::Module*, nn::Module*> unit_of;
  std::unordered_map<nn::Module*, nn::Module*> unit_above;
  for (auto entry = walk.entries.rbegin(); entry != walk.entries.rend(); ++entry) {
    nn::Module* above = entry->parent == nullptr ? nullptr : unit_of[entry->parent];
    unit_of[entry->module] = entry->unit ? entry->module : above;
    if (entry->unit) unit_above[entry->module] = above;
  }

  // A parameter's unit: the deepest that contains all modules that use it.
  std::unordered_map<const TensorImpl*, nn::Module*> home;
  const auto used_in = [&](const Tensor& parameter, nn::Module* unit) {
    const auto [found, fresh] = home.try_emplace(parameter.impl(), unit);
    if (fresh || found->second == unit) return;
    const std::vector<nn::Module*> line = ancestry(unit, unit_above);
    for (nn::Module* candidate : ancestry(found->second, unit_above)) {
      if (std::find(line.begin(), line.end(), candidate) == line.end()) continue;
      found->second = candidate;
      return;
    }
  };
  for (const Walk::Entry& entry : walk.entries) {
    for (const nn::NamedTensor& own : entry.module->named_parameters(false)) {
      used_in(own.tensor, unit_of[entry.module]);
    }
  }
  for (const auto& [module, parent] : walk.shared) {
    if (walk.entries[index[module]].unit) continue;  // gathers by itself, wherever it is called
    for (const Tensor& parameter : module->parameters()) used_in(parameter, unit_of[parent]);
  }

  std::vector<UnitPlan> units;
  std::unordered_map<nn::Module*, std::size_t> place;
  for (const Walk::Entry& entry : walk.entries) {
    if (!entry.unit) continue;
    place[entry.module] = units.size();
    units.push_back({entry.module, entry.name, {}, {}, entry.full_precision});
  }
  for (const Walk::Entry& entry : walk.entries) {
    if (is_ignored(options, entry.name)) continue;
    for (nn::NamedTensor& own : entry.module->named_buffers(false)) {
      own.name = joined(entry.name, own.name);
      units[place[unit_of[entry.module]]].buffers.push_back(std::move(own));
    }
  }
  for (nn::NamedTensor& named : root.named_parameters()) {
    if (is_ignored(options, named.name)) continue;
    units[place[home[named.tensor.impl()]]].parameters.push_back(std::move(named));
  }
  return units;
}

}  // namespace cohort::parallel
