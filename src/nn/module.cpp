#include "cohort/nn/module.h"

#include <algorithm>
#include <unordered_set>

#include "cohort/core/context.h"
#include "cohort/core/error.h"

namespace cohort::nn {
namespace {

// Gives `target` the memory, dtype and layout of `source`, while it stays the same tensor.
void adopt(TensorImpl& target, const TensorImpl& source) {
  target.storage = source.storage;
  target.strides = source.strides;
  target.offset = source.offset;
  target.dtype = source.dtype;
  target.contiguous = source.contiguous;
}

std::string joined(const std::string& prefix, const std::string& name) {
  return prefix.empty() ? name : prefix + "." + name;
}

std::vector<Tensor> without_names(std::vector<NamedTensor> named) {
  std::vector<Tensor> tensors;
  tensors.reserve(named.size());
  for (NamedTensor& entry : named) tensors.push_back(std::move(entry.tensor));
  return tensors;
}

}  // namespace

Tensor Module::register_parameter(std::string name, Tensor tensor, bool requires_grad) {
  check_name("parameter", name);
  if (tensor.defined()) {
    check<DTypeError>(!requires_grad || is_floating(tensor.dtype()), "[register_parameter] '", name,
                      "' is ", tensor.dtype(),
                      "; only floating tensors have gradients: register it with requires_grad "
                      "false, or as a buffer");
    check(tensor.is_leaf(), "[register_parameter] '", name,
          "' is the result of an operation; register a leaf, or its detach()");
    if (tensor.requires_grad() != requires_grad) tensor.set_requires_grad(requires_grad);
  }
  parameters_.push_back({std::move(name), tensor});
  return tensor;
}

Tensor Module::register_buffer(std::string name, Tensor tensor, bool persistent) {
  check_name("buffer", name);
  check(!tensor.defined() || !tensor.requires_grad(), "[register_buffer] '", name,
        "' requires a gradient; register it as a parameter");
  buffers_.push_back({std::move(name), tensor, persistent});
  return tensor;
}

void Module::add_child(std::string name, std::shared_ptr<Module> module) {
  check_name("module", name);
  check(module != nullptr, "[register_module] '", name, "' is null");
  check(module.get() != this, "[register_module] '", name, "' is the module itself");
  children_.emplace_back(std::move(name), std::move(module));
}

void Module::check_name(const char* what, const std::string& name) const {
  check(!name.empty(), "[register_", what, "] the name is empty");
  check(name.find('.') == std::string::npos, "[register_", what, "] the name '", name,
        "' has a dot, which separates the names of nested modules");
  const auto same_entry = [&](const Entry& entry) { return entry.name == name; };
  const bool taken =
      std::any_of(parameters_.begin(), parameters_.end(), same_entry) ||
      std::any_of(buffers_.begin(), buffers_.end(), same_entry) ||
      std::any_of(children_.begin(), children_.end(), [&](auto& c) { return c.first == name; });
  check(!taken, "[register_", what, "] the name '", name, "' is taken in this module");
}

// The modules of the tree in order of registration, each once; their names where asked for.
std::vector<const Module*> Module::tree(std::vector<std::string>* names) const {
  std::vector<const Module*> result;
  std::unordered_set<const Module*> seen;
  const auto walk = [&](const auto& self, const Module& module, const std::string& prefix) -> void {
    if (!seen.insert(&module).second) return;
    result.push_back(&module);
    if (names != nullptr) names->push_back(prefix);
    for (const auto& [name, child] : module.children_) self(self, *child, joined(prefix, name));
  };
  walk(walk, *this, "");
  return result;
}

namespace {

// Collects the defined entries of one kind, each tensor once, under its first name.
template <typename Entries, typename Keep>
std::vector<NamedTensor> collect(const std::vector<const Module*>& modules,
                                 const std::vector<std::string>& prefixes, Entries entries,
                                 Keep keep) {
  std::vector<NamedTensor> result;
  std::unordered_set<const TensorImpl*> seen;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    for (const auto& entry : entries(*modules[i])) {
      if (!entry.tensor.defined() || !keep(entry)) continue;
      if (!seen.insert(entry.tensor.impl()).second) continue;
      result.push_back({joined(prefixes[i], entry.name), entry.tensor});
    }
  }
  return result;
}

constexpr auto kAll = [](const auto&) { return true; };

}  // namespace

std::vector<NamedTensor> Module::named_parameters(bool recurse) const {
  std::vector<std::string> names{""};
  std::vector<const Module*> modules{this};
  if (recurse) {
    names.clear();
    modules = tree(&names);
  }
  return collect(
      modules, names, [](const Module& m) -> auto& { return m.parameters_; }, kAll);
}

std::vector<NamedTensor> Module::named_buffers(bool recurse) const {
  std::vector<std::string> names{""};
  std::vector<const Module*> modules{this};
  if (recurse) {
    names.clear();
    modules = tree(&names);
  }
  return collect(
      modules, names, [](const Module& m) -> auto& { return m.buffers_; }, kAll);
}

std::vector<NamedTensor> Module::named_state() const {
  std::vector<NamedTensor> state = named_parameters();
  std::vector<std::string> names;
  const auto modules = tree(&names);
  auto kept = collect(
      modules, names, [](const Module& m) -> auto& { return m.buffers_; },
      [](const Entry& entry) { return entry.persistent; });
  std::move(kept.begin(), kept.end(), std::back_inserter(state));
  return state;
}

std::vector<Tensor> Module::parameters(bool recurse) const {
  return without_names(named_parameters(recurse));
}

std::vector<Tensor> Module::buffers(bool recurse) const {
  return without_names(named_buffers(recurse));
}

std::vector<NamedModule> Module::named_modules() {
  std::vector<std::string> names;
  const std::vector<const Module*> modules = tree(&names);
  std::vector<NamedModule> result;
  for (std::size_t i = 0; i < modules.size(); ++i) {
    // tree() is shared with the const members; the modules themselves are this object's to change.
    result.push_back({std::move(names[i]), const_cast<Module*>(modules[i])});
  }
  return result;
}

std::vector<NamedModule> Module::named_children() {
  std::vector<NamedModule> result;
  for (const auto& [name, child] : children_) result.push_back({name, child.get()});
  return result;
}

void Module::train(bool on) {
  for (const NamedModule& entry : named_modules()) entry.module->training_ = on;
}

void Module::convert(const std::function<Tensor(const Tensor&)>& fn) {
  std::vector<Tensor> tensors = parameters();
  for (const NamedTensor& entry : named_parameters()) {
    check(!grad_destination(entry.tensor).defined() && grad_manager(entry.tensor).empty(),
          "[to] the gradient of '", entry.name,
          "' has a fixed place; convert the model before DDP or FSDP takes it");
  }
  for (Tensor& buffer : buffers()) tensors.push_back(std::move(buffer));
  const NoGrad no_grad;
  const auto replace = [&](const Tensor& tensor, MemoryCategory category) {
    const MemoryCategoryScope scope(category);
    adopt(*tensor.impl(), *fn(tensor.detach()).impl());
  };
  for (const Tensor& tensor : tensors) {
    replace(tensor, MemoryCategory::parameters);
    if (tensor.grad().defined()) replace(tensor.grad(), MemoryCategory::gradients);
  }
}

void Module::to(DType dtype) {
  check<DTypeError>(is_floating(dtype), "[to] a model cannot be converted to ", dtype);
  convert([dtype](const Tensor& tensor) {
    return is_floating(tensor.dtype()) ? tensor.to(dtype) : tensor;
  });
}

void Module::to(Device device) {
  convert([device](const Tensor& tensor) { return tensor.to(device); });
}

void Module::to_empty(Device device) {
  convert([device](const Tensor& tensor) {
    return Tensor::empty(tensor.shape(), {.dtype = tensor.dtype(), .device = device});
  });
}

void Module::requires_grad_(bool on) {
  const std::vector<NamedTensor> all = named_parameters();
  for (const auto& [name, tensor] : all) {
    check<DTypeError>(!on || is_floating(tensor.dtype()), "[requires_grad_] parameter '", name,
                      "' is ", tensor.dtype(), "; only floating tensors have gradients");
  }
  for (Tensor& tensor : parameters()) tensor.set_requires_grad(on);
}

void Module::zero_grad(bool set_to_none) {
  const NoGrad no_grad;
  for (Tensor& tensor : parameters()) {
    if (!tensor.grad().defined()) continue;
    if (set_to_none) {
      tensor.set_grad({});
    } else {
      Tensor(tensor.grad()).zero_();
    }
  }
}

void Module::apply(const std::function<void(Module&)>& fn) {
  std::unordered_set<Module*> seen;
  const auto walk = [&](const auto& self, Module& module) -> void {
    if (!seen.insert(&module).second) return;
    for (const auto& [name, child] : module.children_) self(self, *child);
    fn(module);
  };
  walk(walk, *this);
}

HookHandle Module::register_forward_pre_hook(ForwardHook hook) {
  return add_hook(pre_hooks_, std::move(hook));
}

HookHandle Module::register_forward_hook(ForwardHook hook) {
  return add_hook(post_hooks_, std::move(hook));
}

HookHandle Module::register_forward_error_hook(std::function<void(Module&)> hook) {
  check(hook != nullptr, "[register_forward_error_hook] the hook is empty");
  return add_hook(error_hooks_,
                  [hook = std::move(hook)](Module& module, std::span<Tensor>) { hook(module); });
}

HookHandle Module::add_hook(std::shared_ptr<HookList>& list, ForwardHook hook) {
  check(hook != nullptr, "[register_forward_hook] the hook is empty");
  if (!list) list = std::make_shared<HookList>();
  std::vector<HookList::Item> items;
  if (list->items) items = *list->items;
  const std::uint64_t id = list->next_id++;
  items.push_back({id, std::move(hook)});
  list->items = std::make_shared<const std::vector<HookList::Item>>(std::move(items));
  return HookHandle([weak = std::weak_ptr<HookList>(list), id] {
    const auto alive = weak.lock();
    if (!alive) return;
    std::vector<HookList::Item> left = *alive->items;
    std::erase_if(left, [id](const HookList::Item& item) { return item.id == id; });
    alive->items = std::make_shared<const std::vector<HookList::Item>>(std::move(left));
  });
}

void Module::run(const std::shared_ptr<HookList>& list, std::span<Tensor> tensors) {
  if (!list) return;
  const auto items = list->items;  // keeps the list that is running
  for (const HookList::Item& item : *items) item.hook(*this, tensors);
}

}  // namespace cohort::nn
