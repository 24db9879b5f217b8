#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/core/tensor.h"
#include "cohort/nn/visit_tensors.h"

namespace cohort::nn {

class Module;

// A parameter or buffer and its name: "features.0.weight".
struct NamedTensor {
  std::string name;
  Tensor tensor;
};

// A module of a tree and its name, "" for the root. The tree owns the module.
struct NamedModule {
  std::string name;
  Module* module;
};

// Sees, and may replace, the tensors that go into or come out of a module's forward.
using ForwardHook = std::function<void(Module& module, std::span<Tensor> tensors)>;

template <typename M>
class Child;

// A node of a model: parameters, buffers and child modules under names, which together form a tree
// with dotted names in order of registration. Derive from ModuleOf<Self> (any signature of forward)
// or from Layer (tensor to tensor), not from Module itself:
//
//   class Net : public nn::ModuleOf<Net> {
//    public:
//     Tensor forward(const Tensor& x, double scale) { return fc2(relu(fc1(x))) * scale; }
//
//    private:
//     nn::Child<nn::Linear> fc1 = make_module<nn::Linear>("fc1", 784, 256);
//     nn::Child<nn::Linear> fc2 = make_module<nn::Linear>("fc2", 256, 10);
//   };
//
// Modules are shared by std::shared_ptr; a module registered twice, or a parameter registered in
// two places (tied), is listed once, under its first name. A module can be moved, which invalidates
// nothing but the source. A tree belongs to one host thread at a time.
class Module {
 public:
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;
  Module& operator=(Module&&) = delete;

  // All parameters and buffers of the tree, or of this module alone.
  std::vector<NamedTensor> named_parameters(bool recurse = true) const;
  std::vector<NamedTensor> named_buffers(bool recurse = true) const;
  // Those that belong in a checkpoint: parameters, then persistent buffers.
  std::vector<NamedTensor> named_state() const;
  std::vector<Tensor> parameters(bool recurse = true) const;
  std::vector<Tensor> buffers(bool recurse = true) const;
  // This module first, then its children's trees.
  std::vector<NamedModule> named_modules();
  std::vector<NamedModule> named_children();

  // Training or evaluation, for the whole tree (dropout, batch norm).
  void train(bool on = true);
  void eval() { train(false); }
  bool is_training() const { return training_; }

  // Converts floating parameters and buffers, or moves all of them. The tensors stay the same
  // objects, so that handles taken before (an optimizer's, say) stay the parameters; gradients
  // follow. Tensors that shared a storage do no longer. InvalidArgument when a gradient destination
  // is set: convert the model before DDP or FSDP takes it.
  void to(DType dtype);
  void to(Device device);
  // As to(device), with uninitialised values: brings a model made on the meta device to life, to be
  // filled by apply(reset_parameters) or from a checkpoint.
  void to_empty(Device device);

  // Sets requires_grad of all parameters. DTypeError, and no change, when one is not floating.
  void requires_grad_(bool on = true);
  // Clears all gradients, or fills them with zeros.
  void zero_grad(bool set_to_none = true);

  // Runs fn on every module of the tree, children first.
  void apply(const std::function<void(Module&)>& fn);
  // Draws this module's own parameters anew (not its children's) from the context's
  // init_generator; a module without parameters does nothing.
  virtual void reset_parameters() {}

  // Pre-hooks run before forward on the tensors found in its arguments, forward hooks after it on
  // those in its result, in order of registration. A replaced tensor is what forward, or the
  // caller, gets; the caller's own variables never change (an argument with a replaced tensor is
  // passed as a copy). When forward throws, forward hooks do not run.
  HookHandle register_forward_pre_hook(ForwardHook hook);
  HookHandle register_forward_hook(ForwardHook hook);
  // Error hooks run instead of forward hooks when forward or a pre-hook throws, before the
  // exception goes on; they must not throw.
  HookHandle register_forward_error_hook(std::function<void(Module& module)> hook);

 protected:
  Module() = default;
  Module(Module&&) = default;

  // Names are not empty, have no dot, and occur once per module: InvalidArgument otherwise.
  //
  // An undefined tensor reserves the name of an absent parameter. DTypeError for a non-floating
  // tensor that is to require a gradient. Returns the parameter itself.
  Tensor register_parameter(std::string name, Tensor tensor, bool requires_grad = true);
  // State that is not trained. Persistent buffers belong in checkpoints.
  Tensor register_buffer(std::string name, Tensor tensor, bool persistent = true);
  template <typename M>
  Child<M> register_module(const std::string& name, std::shared_ptr<M> module) {
    add_child(name, module);
    return Child<M>(std::move(module));
  }
  // Makes an M from `args` and registers it.
  template <typename M, typename... Args>
  Child<M> make_module(const std::string& name, Args&&... args) {
    return register_module(name, std::make_shared<M>(std::forward<Args>(args)...));
  }

  bool has_forward_hooks() const { return pre_hooks_ || post_hooks_ || error_hooks_; }
  void run_pre_hooks(std::span<Tensor> inputs) { run(pre_hooks_, inputs); }
  void run_post_hooks(std::span<Tensor> outputs) { run(post_hooks_, outputs); }
  void run_error_hooks() { run(error_hooks_, {}); }

 private:
  struct Entry {
    std::string name;
    Tensor tensor;
    bool persistent = true;
  };
  // The list is replaced, never changed, so that a hook may add or remove hooks while it runs.
  struct HookList {
    struct Item {
      std::uint64_t id;
      ForwardHook hook;
    };
    std::shared_ptr<const std::vector<Item>> items;
    std::uint64_t next_id = 0;
  };

  void add_child(std::string name, std::shared_ptr<Module> module);
  void check_name(const char* what, const std::string& name) const;
  void run(const std::shared_ptr<HookList>& list, std::span<Tensor> tensors);
  static HookHandle add_hook(std::shared_ptr<HookList>& list, ForwardHook hook);
  std::vector<const Module*> tree(std::vector<std::string>* names) const;
  void convert(const std::function<Tensor(const Tensor&)>& fn);

  std::vector<Entry> parameters_;
  std::vector<Entry> buffers_;
  std::vector<std::pair<std::string, std::shared_ptr<Module>>> children_;
  std::shared_ptr<HookList> pre_hooks_;    // null without hooks ever
  std::shared_ptr<HookList> post_hooks_;   // the same
  std::shared_ptr<HookList> error_hooks_;  // the same
  bool training_ = true;
};

namespace detail {

// An argument of forward while pre-hooks run: the caller's value, and a copy of it once a hook has
// replaced one of its tensors.
template <typename A>
class HookedArgument {
 public:
  explicit HookedArgument(A&& value) : value_(static_cast<A&&>(value)) {}

  // Takes the next tensors of the list that collect_tensors() made.
  void replace(const Tensor*& next) {
    const Tensor* const first = next;
    bool changed = false;
    visit_tensors([&](const Tensor& tensor) { changed |= !tensor.is_same(*next++); },
                  std::as_const(value_));
    if (!changed) return;
    next = first;
    const auto assign = [&](Tensor& tensor) { tensor = *next++; };
    if constexpr (std::is_copy_constructible_v<Plain>) {
      visit_tensors(assign, copy_.emplace(value_));
    } else if constexpr (!std::is_lvalue_reference_v<A> && !std::is_const_v<A>) {
      visit_tensors(assign, value_);
    } else {
      throw NotSupported("[forward] a hook replaced a tensor of an argument that cannot be copied");
    }
  }

  A&& take() {
    if (copy_) return static_cast<A&&>(*copy_);
    return static_cast<A&&>(value_);
  }

 private:
  using Plain = std::remove_cvref_t<A>;
  A&& value_;
  std::optional<Plain> copy_;
};

template <typename A>
requires is_leaf_without_tensors<std::remove_cvref_t<A>>
class HookedArgument<A> {
 public:
  explicit HookedArgument(A&& value) : value_(static_cast<A&&>(value)) {}
  void replace(const Tensor*&) {}
  A&& take() { return static_cast<A&&>(value_); }

 private:
  A&& value_;
};

}  // namespace detail

// Base of a module whose class is Derived: gives it the call operator, which takes what
// Derived::forward takes and runs the hooks around it.
template <typename Derived>
class ModuleOf : public Module {
 public:
  template <typename... Args>
  auto operator()(Args&&... args) {
    return with_hooks(
        [](Derived& self, auto&&... values) {
          return self.forward(static_cast<decltype(values)&&>(values)...);
        },
        std::forward<Args>(args)...);
  }

  // Calls a method other than forward with the hooks that forward has, which is how wrappers learn
  // that the module is used: net.invoke(&Net::encode, x).
  template <typename Method, typename... Args>
  requires std::is_member_function_pointer_v<Method>
  auto invoke(Method method, Args&&... args) {
    return with_hooks(
        [method](Derived& self, auto&&... values) {
          return (self.*method)(static_cast<decltype(values)&&>(values)...);
        },
        std::forward<Args>(args)...);
  }

 private:
  template <typename Run, typename... Args>
  auto with_hooks(const Run& run, Args&&... args) {
    if (!has_forward_hooks()) {
      return run(static_cast<Derived&>(*this), std::forward<Args>(args)...);
    }
    try {
      std::vector<Tensor> inputs = collect_tensors(args...);
      run_pre_hooks(inputs);
      return hooked(run, std::move(inputs),
                    detail::HookedArgument<Args>(std::forward<Args>(args))...);
    } catch (...) {
      run_error_hooks();
      throw;
    }
  }

  template <typename Run, typename... Arguments>
  auto hooked(const Run& run, std::vector<Tensor> inputs, Arguments... arguments) {
    auto& self = static_cast<Derived&>(*this);
    const Tensor* next = inputs.data();
    (arguments.replace(next), ...);
    inputs.clear();  // forward alone decides how long its inputs live
    if constexpr (std::is_void_v<decltype(run(self, arguments.take()...))>) {
      run(self, arguments.take()...);
      run_post_hooks({});
    } else {
      auto result = run(self, arguments.take()...);
      std::vector<Tensor> outputs = collect_tensors(result);
      run_post_hooks(outputs);
      next = outputs.data();
      visit_tensors([&](Tensor& tensor) { tensor = *next++; }, result);
      return result;
    }
  }
};

// A module from one tensor to one tensor: what Sequential is made of.
class Layer : public ModuleOf<Layer> {
 public:
  virtual Tensor forward(const Tensor& x) = 0;
};

// A shared pointer to a module that is called like the module itself: child(x).
template <typename M>
class Child : public std::shared_ptr<M> {
 public:
  Child() = default;
  explicit Child(std::shared_ptr<M> module) : std::shared_ptr<M>(std::move(module)) {}

  template <typename... Args>
  auto operator()(Args&&... args) const {
    return (*this->get())(std::forward<Args>(args)...);
  }
};

}  // namespace cohort::nn
