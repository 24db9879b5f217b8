#include "parallel/optim_state.h"

#include <algorithm>
#include <map>
#include <set>
#include <unordered_map>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"

namespace cohort::parallel {
namespace {

std::string key_of(const std::string& parameter, const std::string& state) {
  return parameter + ": " + state;
}

std::string listed(const std::set<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "nothing" : text;
}

using Groups = std::vector<OptimState::Group>;

// Groups of this module's parameters: others may be the optimizer's own business.
std::vector<std::size_t> not_empty(const Groups& groups) {
  std::vector<std::size_t> result;
  for (std::size_t i = 0; i < groups.size(); ++i) {
    if (!groups[i].parameters.empty()) result.push_back(i);
  }
  return result;
}

// Takes the learning rates over, group by group; what keeps it from that otherwise.
std::string match_groups(const Groups& given, const Groups& own, std::vector<double>& rates) {
  for (const OptimState::Group& group : own) rates.push_back(group.lr);
  const std::vector<std::size_t> from = not_empty(given);
  const std::vector<std::size_t> to = not_empty(own);
  if (from.size() != to.size()) {
    return str("; it has ", from.size(), " parameter groups, the optimizer ", to.size());
  }
  std::string wrong;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::vector<std::string>& a = given[from[i]].parameters;
    const std::vector<std::string>& b = own[to[i]].parameters;
    const std::set<std::string> theirs(a.begin(), a.end());
    const std::set<std::string> ours(b.begin(), b.end());
    if (theirs != ours) {
      wrong +=
          str("; parameter group ", to[i], " has ", listed(theirs), " instead of ", listed(ours));
    }
    rates[to[i]] = given[from[i]].lr;
  }
  return wrong;
}

// The parts of one parameter's state, of which equal ones are replicas.
struct Parts {
  std::map<std::pair<std::int64_t, std::int64_t>, std::int64_t> steps;  // by range
  std::string wrong;

  void add(const OptimState::Parameter& part, const Shape& shape) {
    if (!wrong.empty()) return;
    if (part.shape != shape) {
      wrong = str("; '", part.name, "' has shape ", part.shape, " instead of ", shape);
    } else if (part.step_count < 0) {
      wrong = str("; '", part.name, "' has the step count ", part.step_count);
    } else if (part.begin < part.end) {
      steps.try_emplace({part.begin, part.end}, part.step_count);
    }
  }
  // The step count that all agree on.
  std::int64_t agreed(const std::string& name) {
    std::int64_t result = 0;
    for (const auto& [range, count] : steps) {
      if (result != count && &count != &steps.begin()->second) {
        wrong = str("; parts of '", name, "' have the step counts ", result, " and ", count);
      }
      result = count;
    }
    return result;
  }
};

std::unordered_map<std::string, Parts> collect_parts(
    const std::vector<OptimizedParameter>& parameters, std::span<const OptimState> states,
    std::string& wrong) {
  std::unordered_map<std::string, const OptimizedParameter*> known;
  for (const OptimizedParameter& parameter : parameters) known[parameter.name] = &parameter;
  std::unordered_map<std::string, Parts> parts;
  std::set<std::string> unknown;
  for (const OptimState& state : states) {
    for (const OptimState::Parameter& part : state.parameters) {
      const auto found = known.find(part.name);
      if (found != known.end()) {
        parts[part.name].add(part, found->second->place.shape);
      } else if (unknown.insert(part.name).second) {
        wrong += str("; '", part.name, "' is unknown");
      }
    }
  }
  return parts;
}

// The state tensors of the parameters that have been stepped.
void add_pieces(StatePieces& pieces, std::span<const OptimState> states,
                const std::set<std::string>& stepped) {
  for (std::size_t source = 0; source < states.size(); ++source) {
    for (const OptimState::Parameter& part : states[source].parameters) {
      if (part.begin == part.end || !stepped.contains(part.name)) continue;
      for (const auto& [name, tensor] : part.state) {
        pieces.add(
            {key_of(part.name, name), part.shape, part.begin, part.end, part.replica, tensor},
            static_cast<int>(source));
      }
    }
  }
}

}  // namespace

std::vector<OptimizedParameter> optimized_parameters(const nn::Module& module,
                                                     const optim::Optimizer& optimizer,
                                                     const StatePlaces& places) {
  std::unordered_map<const TensorImpl*, std::size_t> group_of;
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    for (const Tensor& tensor : optimizer.parameters(group)) group_of[tensor.impl()] = group;
  }
  std::vector<OptimizedParameter> result;
  for (const auto& [name, tensor] : module.named_parameters()) {
    const auto found = group_of.find(tensor.impl());
    if (found == group_of.end()) continue;
    result.push_back({name, tensor, places.of(tensor), found->second});
  }
  return result;
}

std::vector<OptimState::Group> optim_groups(const optim::Optimizer& optimizer,
                                            const std::vector<OptimizedParameter>& parameters) {
  Groups groups;
  for (std::size_t i = 0; i < optimizer.group_count(); ++i) groups.push_back({optimizer.lr(i), {}});
  for (const OptimizedParameter& parameter : parameters) {
    groups[parameter.group].parameters.push_back(parameter.name);
  }
  return groups;
}

OptimState local_optim_state(const optim::Optimizer& optimizer,
                             const std::vector<OptimizedParameter>& parameters) {
  OptimState result{.parameters = {}, .groups = optim_groups(optimizer, parameters)};
  for (const auto& [name, tensor, place, group] : parameters) {
    OptimState::Parameter& part = result.parameters.emplace_back();
    part = {name, place.shape, place.part.begin, place.part.end, place.replica, 0, {}};
    if (place.part.size() == 0) continue;
    part.step_count = optimizer.step_count(tensor);
    if (part.step_count > 0) part.state = optimizer.state(tensor);
  }
  return result;
}

OptimLoad read_optim_states(const optim::Optimizer& optimizer,
                            const std::vector<OptimizedParameter>& parameters,
                            std::span<const OptimState> states, bool whole) {
  OptimLoad load;
  load.wrong = match_groups(states.empty() ? Groups() : states.front().groups,
                            optim_groups(optimizer, parameters), load.rates);
  auto parts = collect_parts(parameters, states, load.wrong);
  std::vector<StateTarget> targets;
  std::set<std::string> stepped;
  for (const auto& [name, tensor, place, group] : parameters) {
    load.steps.push_back(0);
    const auto found = parts.find(name);
    if (found == parts.end()) {
      load.wrong += str("; '", name, "' is missing");
      continue;
    }
    const std::int64_t steps = found->second.agreed(name);
    load.wrong += found->second.wrong;
    if (!found->second.wrong.empty() || steps == 0) continue;
    load.steps.back() = steps;
    stepped.insert(name);
    const FlatLayout::Range all{0, place.shape.product()};
    for (const std::string& state : optimizer.state_names_of(tensor)) {
      targets.push_back({key_of(name, state), place.shape, whole ? all : place.part, {}});
    }
  }
  add_pieces(load.pieces, states, stepped);
  load.wrong += load.pieces.problems(targets);
  return load;
}

std::vector<StateTarget> prepare_optimizer(optim::Optimizer& optimizer,
                                           const std::vector<OptimizedParameter>& parameters,
                                           const std::vector<std::int64_t>& steps,
                                           const std::vector<double>& rates) {
  for (std::size_t group = 0; group < rates.size(); ++group) {
    if (optimizer.lr(group) != rates[group]) optimizer.set_lr(rates[group], group);
  }
  std::vector<StateTarget> targets;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const auto& [name, tensor, place, group] = parameters[i];
    const bool had_none = optimizer.state(tensor).empty() && optimizer.step_count(tensor) == 0;
    if (steps[i] == 0 && had_none) continue;
    const std::vector<std::string> names = optimizer.state_names_of(tensor);
    if (tensor.numel() > 0) {
      // What is to be loaded may lie in the state that is there.
      std::vector<optim::NamedState> first = optimizer.state(tensor);
      if (steps[i] == 0 || first.empty()) {
        first.clear();
        for (const std::string& state : names) {
          first.push_back({state, Tensor::zeros(tensor.shape(), tensor.options())});
        }
      }
      optimizer.load_state(tensor, steps[i], first);
    }
    if (steps[i] == 0) continue;
    const std::vector<optim::NamedState> states = optimizer.state(tensor);
    for (std::size_t k = 0; k < names.size(); ++k) {
      // An optimizer may leave a parameter to another rank.
      const bool here = !states.empty() && tensor.numel() > 0;
      targets.push_back({key_of(name, names[k]), place.shape,
                         here ? place.part : FlatLayout::Range{},
                         here ? states[k].tensor : Tensor::empty({0}, tensor.options())});
    }
  }
  return targets;
}

}  // namespace cohort::parallel

namespace cohort {

OptimState assemble_full_optim_state(std::span<const OptimState> states) {
  const NoGrad no_grad;
  OptimState result;
  if (!states.empty()) result.groups = states.front().groups;
  std::vector<parallel::Parts> parts;
  std::unordered_map<std::string, std::size_t> places;
  for (const OptimState& state : states) {
    for (const OptimState::Parameter& part : state.parameters) {
      const auto [place, fresh] = places.try_emplace(part.name, parts.size());
      if (fresh) {
        parts.emplace_back();
        result.parameters.push_back({part.name, part.shape, 0, part.shape.product(), 0, 0, {}});
      }
      parts[place->second].add(part, result.parameters[place->second].shape);
    }
  }
  std::string wrong;
  std::set<std::string> stepped;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    OptimState::Parameter& parameter = result.parameters[i];
    parameter.step_count = parts[i].agreed(parameter.name);
    wrong += parts[i].wrong;
    if (parameter.step_count > 0) stepped.insert(parameter.name);
  }
  check(wrong.empty(), "[assemble_full_optim_state] the state does not fit", wrong);
  parallel::StatePieces pieces;
  parallel::add_pieces(pieces, states, stepped);
  std::unordered_map<std::string, Tensor> filled;
  for (const auto& target : parallel::fill_whole("assemble_full_optim_state", pieces)) {
    filled[target.name] = target.tensor;
  }
  // Each state's name, once, in the order of the parts.
  for (const OptimState& state : states) {
    for (const OptimState::Parameter& part : state.parameters) {
      OptimState::Parameter& parameter = result.parameters[places.at(part.name)];
      for (const auto& [name, tensor] : part.state) {
        const auto found = filled.find(parallel::key_of(part.name, name));
        if (found == filled.end()) continue;
        parameter.state.push_back({name, found->second});
        filled.erase(found);
      }
    }
  }
  return result;
}

}  // namespace cohort
