#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/nn/module.h"

namespace cohort {

// Decides which modules of a tree become FSDP units. A value; an empty one matches nothing.
struct WrapPolicy {
  // A module of the tree, its dotted name, and the elements of its parameters that no deeper unit
  // has taken. Children are asked before their parents.
  using Decide =
      std::function<bool(const nn::Module& module, const std::string& name, std::int64_t elements)>;
  std::string text;  // for messages: "by_size(100000)"
  Decide decide;
  // Names that must occur among the modules with parameters.
  std::vector<std::string> required = {};
};

namespace wrap {

// Modules whose parameters, without those of deeper units, have at least `min_elements`.
WrapPolicy by_size(std::int64_t min_elements);
// Modules for which `predicate` holds.
WrapPolicy by_predicate(std::function<bool(const nn::Module&, const std::string& name)> predicate);
// Modules that are, or derive from, one of the types.
template <typename... Modules>
WrapPolicy by_type() {
  WrapPolicy policy = by_predicate([](const nn::Module& module, const std::string&) {
    return ((dynamic_cast<const Modules*>(&module) != nullptr) || ...);
  });
  policy.text = "by_type";
  return policy;
}
// Exactly the modules with these names, such as "layers.3": wrapping by hand. InvalidArgument at
// wrapping when the tree has no module of that name with parameters.
WrapPolicy by_name(std::vector<std::string> names);
// Modules that one of the policies, or all of them, take.
WrapPolicy any_of(std::vector<WrapPolicy> policies);
WrapPolicy all_of(std::vector<WrapPolicy> policies);

}  // namespace wrap
}  // namespace cohort
