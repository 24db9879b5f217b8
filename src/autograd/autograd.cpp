// The public face of the engine, and Tensor's members that concern gradients.

#include "cohort/autograd/autograd.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "autograd/engine.h"
#include "autograd/meta.h"

namespace cohort {
namespace {

// The AutogradMeta of a leaf that requires a gradient.
AutogradMeta& leaf_meta(const char* operation, const Tensor& leaf) {
  check<AutogradError>(leaf.defined() && leaf.requires_grad() && leaf.is_leaf(), "[", operation,
                       "] needs a leaf tensor that requires a gradient");
  return *AutogradMeta::of(leaf);
}

// Removes the entry `id` from a list of hooks that belongs to an object which may be gone.
template <typename Hooks>
void erase_hook(Hooks& hooks, std::uint64_t id) {
  std::erase_if(hooks, [&](const auto& entry) { return entry.id == id; });
}

}  // namespace

void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients,
              const BackwardOptions& options) {
  GraphTask(options).run(outputs, gradients);
}

BackwardStats backward_with_stats(const std::vector<Tensor>& outputs,
                                  const std::vector<Tensor>& gradients,
                                  const BackwardOptions& options) {
  GraphTask task(options);
  task.run(outputs, gradients);
  return task.stats;
}

std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients, const BackwardOptions& options) {
  GraphTask task(options);
  task.run(outputs, gradients, &inputs);
  return std::move(task.captured);
}

HookHandle register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook) {
  check<AutogradError>(tensor.defined() && tensor.requires_grad(),
                       "[register_hook] the tensor does not require a gradient");
  check(static_cast<bool>(hook), "[register_hook] the hook is empty");
  AutogradMeta& meta = *AutogradMeta::of(tensor);
  const std::uint64_t id = ++Context::current().next_node;  // no other hook has it
  if (meta.grad_fn) {
    // Two handles of one tensor share its meta, so the id is unique among this output's hooks.
    const int output = meta.output;
    meta.grad_fn->output_hooks().push_back({output, id, std::move(hook)});
    return HookHandle([node = meta.grad_fn, output, id] {
      std::erase_if(node->output_hooks(), [&](const Node::OutputHook& entry) {
        return entry.output == output && entry.id == id;
      });
    });
  }
  meta.hooks.push_back({id, std::move(hook)});
  return HookHandle([tensor, id] {
    if (AutogradMeta* current = AutogradMeta::of(tensor)) erase_hook(current->hooks, id);
  });
}

HookHandle register_post_accumulate_grad_hook(const Tensor& leaf,
                                              std::function<void(const Tensor& leaf)> hook) {
  check(static_cast<bool>(hook), "[register_post_accumulate_grad_hook] the hook is empty");
  AutogradMeta& meta = leaf_meta("register_post_accumulate_grad_hook", leaf);
  const std::uint64_t id = ++Context::current().next_node;  // no other hook has it
  meta.post_hooks.push_back({id, std::move(hook)});
  return HookHandle([leaf, id] {
    if (AutogradMeta* current = AutogradMeta::of(leaf)) erase_hook(current->post_hooks, id);
  });
}

void queue_callback(std::function<void()> callback,
                    std::function<void(const std::exception_ptr&)> on_error) {
  GraphTask* task = Context::current().graph_task;
  check<AutogradError>(task != nullptr, "[queue_callback] no backward is running in this thread");
  task->callbacks.push_back({std::move(callback), std::move(on_error)});
}

bool backward_is_accumulating() {
  const GraphTask* task = Context::current().graph_task;
  return task != nullptr && task->accumulates();
}

bool backward_reaches(const Tensor& leaf) {
  const GraphTask* task = Context::current().graph_task;
  const AutogradMeta* meta = AutogradMeta::of(leaf);
  return task != nullptr && meta != nullptr && meta->accumulator != nullptr &&
         task->owns(*meta->accumulator);
}

std::uint64_t current_backward() {
  const GraphTask* task = Context::current().graph_task;
  return task != nullptr ? task->id() : 0;
}

void when_backward_has_left(std::uint64_t begin, std::uint64_t end, std::function<void()> done) {
  GraphTask* task = Context::current().graph_task;
  check<AutogradError>(task != nullptr,
                       "[when_backward_has_left] no backward is running in this thread");
  task->watch(begin, end, std::move(done));
}

const std::string& grad_manager(const Tensor& leaf) {
  static const std::string none;
  const AutogradMeta* meta = AutogradMeta::of(leaf);
  return meta != nullptr ? meta->manager : none;
}

void set_grad_manager(const Tensor& leaf, const std::string& manager) {
  AutogradMeta& meta = leaf_meta("set_grad_manager", leaf);
  check<AutogradError>(manager.empty() || meta.manager.empty(), "[", manager,
                       "] the gradient of this parameter is managed by ", meta.manager,
                       " already; wrap a module once, or destroy the first wrapper before");
  meta.manager = manager;
}

bool Tensor::requires_grad() const {
  return impl_->autograd != nullptr;
}

bool Tensor::is_leaf() const {
  const AutogradMeta* meta = AutogradMeta::of(*this);
  return meta == nullptr || !meta->grad_fn;
}

Tensor& Tensor::set_requires_grad(bool value) {
  check<AutogradError>(is_leaf(), "[set_requires_grad] only a leaf can be told; use detach()");
  if (value == requires_grad()) return *this;
  check<DTypeError>(!value || is_floating(dtype()), "[set_requires_grad] a tensor of ", dtype(),
                    " cannot have a gradient; only floating ones can");
  if (value) {
    impl_->autograd = std::make_unique<AutogradMeta>();
  } else {
    check<AutogradError>(AutogradMeta::of(*this)->accumulator == nullptr,
                         "[set_requires_grad] the tensor takes part in a graph that is still "
                         "alive; drop the outputs made from it first");
    impl_->autograd.reset();
  }
  return *this;
}

const Tensor& Tensor::grad() const {
  static const Tensor none;
  const AutogradMeta* meta = AutogradMeta::of(*this);
  return meta != nullptr ? meta->grad : none;
}

void Tensor::set_grad(const Tensor& grad) {
  AutogradMeta* meta = AutogradMeta::of(*this);
  if (!grad.defined()) {
    if (meta != nullptr) meta->grad = {};
    return;
  }
  check<AutogradError>(meta != nullptr && !meta->grad_fn,
                       "[set_grad] needs a leaf tensor that requires a gradient");
  check<ShapeError>(grad.shape() == shape(), "[set_grad] shape ", grad.shape(),
                    " for a tensor of shape ", shape());
  check<DTypeError>(grad.dtype() == dtype(), "[set_grad] dtype ", grad.dtype(),
                    " for a tensor of dtype ", dtype());
  meta->grad = grad.requires_grad() ? grad.detach() : grad;
}

void Tensor::backward(const Tensor& gradient, bool retain_graph) const {
  check(defined(), "[backward] the tensor is undefined");
  cohort::backward({*this}, gradient.defined() ? std::vector{gradient} : std::vector<Tensor>{},
                   {.retain_graph = retain_graph});
}

}  // namespace cohort
