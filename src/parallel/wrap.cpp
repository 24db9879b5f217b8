#include "cohort/parallel/wrap.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::wrap {
namespace {

std::string joined(const std::vector<WrapPolicy>& policies, const std::string& word) {
  std::string text;
  for (const WrapPolicy& policy : policies) text += (text.empty() ? "" : ", ") + policy.text;
  return word + '(' + text + ')';
}

void check_all(const std::vector<WrapPolicy>& policies) {
  for (const WrapPolicy& policy : policies) {
    check(static_cast<bool>(policy.decide), "[wrap] a combined policy is empty");
  }
}

std::vector<std::string> required_by(const std::vector<WrapPolicy>& policies) {
  std::vector<std::string> names;
  for (const WrapPolicy& policy : policies) {
    names.insert(names.end(), policy.required.begin(), policy.required.end());
  }
  return names;
}

}  // namespace

WrapPolicy by_size(std::int64_t min_elements) {
  check(min_elements > 0, "[wrap] by_size needs a positive number of elements, got ", min_elements);
  return {str("by_size(", min_elements, ")"),
          [min_elements](const nn::Module&, const std::string&, std::int64_t elements) {
            return elements >= min_elements;
          }};
}

WrapPolicy by_predicate(std::function<bool(const nn::Module&, const std::string&)> predicate) {
  check(static_cast<bool>(predicate), "[wrap] the predicate is empty");
  return {"by_predicate",
          [predicate = std::move(predicate)](const nn::Module& module, const std::string& name,
                                             std::int64_t) { return predicate(module, name); }};
}

WrapPolicy by_name(std::vector<std::string> names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return {"by_name(" + text + ')',
          [names](const nn::Module&, const std::string& name, std::int64_t) {
            return std::find(names.begin(), names.end(), name) != names.end();
          },
          names};
}

WrapPolicy any_of(std::vector<WrapPolicy> policies) {
  check_all(policies);
  std::string text = joined(policies, "any_of");
  std::vector<std::string> required = required_by(policies);
  return {std::move(text),
          [policies = std::move(policies)](const nn::Module& module, const std::string& name,
                                           std::int64_t elements) {
            return std::any_of(policies.begin(), policies.end(), [&](const WrapPolicy& policy) {
              return policy.decide(module, name, elements);
            });
          },
          std::move(required)};
}

WrapPolicy all_of(std::vector<WrapPolicy> policies) {
  check_all(policies);
  std::string text = joined(policies, "all_of");
  std::vector<std::string> required = required_by(policies);
  return {std::move(text),
          [policies = std::move(policies)](const nn::Module& module, const std::string& name,
                                           std::int64_t elements) {
            return std::all_of(policies.begin(), policies.end(), [&](const WrapPolicy& policy) {
              return policy.decide(module, name, elements);
            });
          },
          std::move(required)};
}

}  // namespace cohort::wrap
