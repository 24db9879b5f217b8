#include "autograd/engine.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/logging.h"

namespace cohort {
namespace {

// Leaves have no edges and go first; otherwise the node made last runs first.
bool runs_later(const Progress* a, const Progress* b) {
  const bool leaf_a = a->node->edges().empty();
  const bool leaf_b = b->node->edges().empty();
  if (leaf_a != leaf_b) return leaf_b;
  return a->node->sequence() < b->node->sequence();
}

bool exclusive(const Tensor& tensor) {
  return tensor.impl()->use_count() == 1 && tensor.storage().use_count() == 1;
}

// A hook's answer in place of `gradient`.
Tensor checked_replacement(const Tensor& gradient, Tensor replacement) {
  if (!replacement.defined()) return gradient;
  check<ShapeError>(replacement.shape() == gradient.shape(), "[hook] returned a gradient of shape ",
                    replacement.shape(), " for one of ", gradient.shape());
  check<DTypeError>(replacement.dtype() == gradient.dtype(), "[hook] returned a gradient of ",
                    replacement.dtype(), " for one of ", gradient.dtype());
  return replacement;
}

// Makes a backward the thread's current one.
class TaskScope {
 public:
  TaskScope(Context& context, GraphTask* task)
      : context_(context), outer_(std::exchange(context.graph_task, task)) {}
  ~TaskScope() { context_.graph_task = outer_; }
  TaskScope(const TaskScope&) = delete;
  TaskScope& operator=(const TaskScope&) = delete;

 private:
  Context& context_;
  GraphTask* outer_;
};

// Tells one callback how backward failed. What it throws itself is second to that.
void tell(const GraphTask::Callback& callback, const std::exception_ptr& error) noexcept {
  try {
    const auto failed = callback.failed;  // it may queue further callbacks
    failed(error);
  } catch (const std::exception& second) {
    logging::warn(str("[backward] while a failure was handled: ", second.what()));
  } catch (...) {
    logging::warn("[backward] while a failure was handled: an unknown exception");
  }
}

}  // namespace

// What one node sees while it runs.
class Frame final : public GradFrame {
 public:
  Frame(GraphTask& task, Progress& progress) : task_(task), progress_(progress) {}

  const Tensor& grad(int output) const override {
    return progress_.grads[static_cast<std::size_t>(output)];
  }

  bool needs(int input) const override {
    const Edge& edge = this->edge(input);
    return edge.node && edge.node->progress->needed;
  }

  void set(int input, Tensor grad) override {
    if (!needs(input)) return;
    const Edge& edge = this->edge(input);
    GraphTask::add(*edge.node->progress, edge.output, std::move(grad));
  }

  GradTarget target(int input, const Shape& shape, DType dtype) override {
    const Edge& edge = this->edge(input);
    Progress& next = *edge.node->progress;
    auto* leaf = dynamic_cast<AccumulateGrad*>(edge.node.get());
    if (leaf != nullptr && task_.accumulate_ && next.incoming == 1) {
      GradTarget direct = leaf->direct_target(shape, dtype);
      if (direct.tensor.defined()) {
        next.written = true;
        leaf->adopt_target(direct);
        return direct;
      }
    }
    const MemoryCategoryScope scope(leaf != nullptr ? MemoryCategory::gradients
                                                    : MemoryCategory::activations);
    GradTarget fresh{Tensor::empty(shape, {dtype, device(), false}), false};
    unfilled_.emplace_back(input, fresh.tensor);
    return fresh;
  }

  // Hands on what the node wrote into fresh targets, once it has returned.
  void deliver_targets() {
    for (auto& [input, tensor] : unfilled_) set(input, std::move(tensor));
  }

 private:
  const Edge& edge(int input) const {
    return progress_.node->edges()[static_cast<std::size_t>(input)];
  }
  Device device() const {
    for (const Tensor& grad : progress_.grads) {
      if (grad.defined()) return grad.device();
    }
    return Device::cpu();
  }

  GraphTask& task_;
  Progress& progress_;
  std::vector<std::pair<int, Tensor>> unfilled_;
};

GraphTask::GraphTask(const BackwardOptions& options) : options_(options) {}

GraphTask::~GraphTask() {
  for (Progress& progress : progress_) progress.node->progress = progress.outer;
}

Progress& GraphTask::claim(Node& node) {
  Progress& progress = progress_.emplace_back();
  progress.node = &node;
  progress.task = this;
  progress.outer = node.progress;
  progress.grads.resize(static_cast<std::size_t>(node.output_count()));
  node.progress = &progress;
  return progress;
}

void GraphTask::run(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients,
                    const std::vector<Tensor>* wanted) {
  check<NotSupported>(!options_.create_graph,
                      "[backward] create_graph is not supported: gradients of gradients cannot be "
                      "computed yet");
  Context& context = Context::current();
  id_ = ++context.next_node;  // shares the nodes' counter: never 0, and no other backward's
  const TaskScope scope(context, this);
  const NoGrad no_grad;
  try {
    accumulate_ = wanted == nullptr;
    seed(outputs, gradients);
    discover();
    if (wanted != nullptr) mark_needed(*wanted);
    run_ready();
    finish_callbacks();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    for (std::size_t i = 0; i < callbacks.size(); ++i) {
      if (callbacks[i].failed) tell(callbacks[i], error);
    }
    throw;
  }
}

void GraphTask::seed(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients) {
  check(!outputs.empty(), "[backward] no outputs were given");
  check(gradients.empty() || gradients.size() == outputs.size(), "[backward] ", gradients.size(),
        " gradients for ", outputs.size(), " outputs");
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const Tensor& output = outputs[i];
    check(output.defined(), "[backward] output ", i, " is undefined");
    check<AutogradError>(output.requires_grad(), "[backward] output ", i, " of shape ",
                         output.shape(),
                         " does not require a gradient: nothing it was made from does, or it was "
                         "computed under NoGrad");
    Tensor gradient = gradients.empty() ? Tensor() : gradients[i];
    if (!gradient.defined()) {
      check<ShapeError>(output.numel() == 1, "[backward] output ", i, " has shape ", output.shape(),
                        "; only a single element may leave out its gradient");
      gradient = Tensor::ones(output.shape(), output.options());
    }
    check<ShapeError>(gradient.shape() == output.shape(), "[backward] gradient of shape ",
                      gradient.shape(), " for an output of shape ", output.shape());
    check<DTypeError>(gradient.dtype() == output.dtype(), "[backward] gradient of ",
                      gradient.dtype(), " for an output of ", output.dtype());
    const Edge edge = gradient_edge(output);
    if (!owns(*edge.node)) {
      roots_.push_back(edge.node);
      claim(*edge.node);
    }
    add(*edge.node->progress, edge.output, gradient.detach());
  }
}

bool GraphTask::owns(const Node& node) const {
  return node.progress != nullptr && node.progress->task == this;
}

void GraphTask::discover() {
  std::vector<Node*> open;
  for (const auto& root : roots_) open.push_back(root.get());
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    for (const Edge& edge : node->edges()) {
      if (!edge.node) continue;
      if (!owns(*edge.node)) {
        claim(*edge.node);
        open.push_back(edge.node.get());
      }
      ++edge.node->progress->incoming;
      ++edge.node->progress->pending;
    }
  }
}

void GraphTask::mark_needed(const std::vector<Tensor>& wanted) {
  captured.resize(wanted.size());
  for (Progress& progress : progress_) progress.needed = false;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    check(wanted[i].defined() && wanted[i].requires_grad(), "[grad] input ", i,
          " does not require a gradient");
    const Edge edge = gradient_edge(wanted[i]);
    if (!owns(*edge.node)) continue;  // the outputs do not depend on it
    edge.node->progress->needed = true;
    wanted_.emplace(std::pair(edge.node.get(), edge.output), i);
  }
  // An operation is younger than those its inputs came from: in ascending order each node finds
  // the nodes behind it decided.
  std::vector<Progress*> order;
  for (Progress& progress : progress_) order.push_back(&progress);
  std::sort(order.begin(), order.end(), [](const Progress* a, const Progress* b) {
    return a->node->sequence() < b->node->sequence();
  });
  for (Progress* progress : order) {
    for (const Edge& edge : progress->node->edges()) {
      if (edge.node && edge.node->progress->needed) progress->needed = true;
    }
  }
}

void GraphTask::run_ready() {
  for (const auto& root : roots_) {
    if (root->progress->pending == 0) ready_.push_back(root->progress);
  }
  std::make_heap(ready_.begin(), ready_.end(), runs_later);
  while (!ready_.empty()) {
    std::pop_heap(ready_.begin(), ready_.end(), runs_later);
    Progress& progress = *ready_.back();
    ready_.pop_back();
    if (auto* leaf = dynamic_cast<AccumulateGrad*>(progress.node)) {
      run_leaf(progress, *leaf);
    } else {
      run_node(progress);
    }
    progress.grads.clear();
  }
}

void GraphTask::run_leaf(Progress& progress, AccumulateGrad& leaf) {
  Tensor gradient = std::move(progress.grads.front());
  if (gradient.defined()) {
    // A copy of the list: a hook may remove itself or others.
    for (const auto& entry : std::vector(leaf.meta().hooks)) {
      gradient = checked_replacement(gradient, entry.hook(gradient));
    }
  }
  if (!accumulate_) {
    progress.grads.front() = std::move(gradient);
    capture(progress);
    return;
  }
  if (progress.written) {
    ++stats.direct_writes;
  } else if (gradient.defined()) {
    ++stats.temporaries;
    const bool own = exclusive(gradient);
    leaf.accumulate(std::move(gradient), own);
  }
  leaf.run_post_hooks();
}

void GraphTask::run_node(Progress& progress) {
  Node& node = *progress.node;
  apply_output_hooks(progress);
  if (!wanted_.empty()) capture(progress);
  const bool has_gradient = std::any_of(progress.grads.begin(), progress.grads.end(),
                                        [](const Tensor& grad) { return grad.defined(); });
  const bool leads_on = std::any_of(node.edges().begin(), node.edges().end(), [](const Edge& edge) {
    return edge.node && edge.node->progress->needed;
  });
  if (has_gradient && leads_on) {
    check<AutogradError>(!node.released_, "[", node.name(),
                         "] backward through a graph whose saved tensors were released by an "
                         "earlier backward; pass retain_graph = true to that one");
    Frame frame(*this, progress);
    node.backward(frame);
    frame.deliver_targets();
    ++stats.nodes;
    if (!options_.retain_graph) {
      node.released_ = true;
      node.release();
    }
  }
  progress.grads.clear();
  progress.ran = true;
  for (const Edge& edge : node.edges()) {
    if (edge.node) arrive(*edge.node->progress);
  }
  if (!spans_.empty()) count_down(node);
}

void GraphTask::watch(std::uint64_t begin, std::uint64_t end, std::function<void()> done) {
  const auto left =
      std::count_if(progress_.begin(), progress_.end(), [&](const Progress& progress) {
        const std::uint64_t number = progress.node->sequence();
        return !progress.ran && !progress.node->edges().empty() && number >= begin && number < end;
      });
  if (left == 0) {
    done();
  } else {
    spans_.push_back({begin, end, static_cast<int>(left), std::move(done)});
  }
}

void GraphTask::count_down(const Node& node) {
  std::vector<std::function<void()>> over;
  for (Span& span : spans_) {
    if (node.sequence() < span.begin || node.sequence() >= span.end) continue;
    if (--span.left == 0) over.push_back(std::move(span.done));
  }
  std::erase_if(spans_, [](const Span& span) { return span.left == 0; });
  for (const auto& done : over) done();
}

void GraphTask::capture(const Progress& progress) {
  for (std::size_t output = 0; output < progress.grads.size(); ++output) {
    const auto range = wanted_.equal_range({progress.node, static_cast<int>(output)});
    for (auto found = range.first; found != range.second; ++found) {
      captured[found->second] = progress.grads[output];
    }
  }
}

void GraphTask::apply_output_hooks(Progress& progress) {
  if (progress.node->output_hooks().empty()) return;
  // A copy of the list: a hook may remove itself or others.
  for (const Node::OutputHook& hook : std::vector(progress.node->output_hooks())) {
    Tensor& gradient = progress.grads[static_cast<std::size_t>(hook.output)];
    if (gradient.defined()) gradient = checked_replacement(gradient, hook.hook(gradient));
  }
}

void GraphTask::add(Progress& progress, int output, Tensor gradient) {
  if (!gradient.defined()) return;
  Tensor& sum = progress.grads[static_cast<std::size_t>(output)];
  if (!sum.defined()) {
    sum = std::move(gradient);
    return;
  }
  check<ShapeError>(sum.shape() == gradient.shape(), "[backward] gradients of shapes ", sum.shape(),
                    " and ", gradient.shape(), " arrive at one tensor");
  if (!exclusive(sum) || !sum.is_contiguous()) {
    Tensor own = Tensor::empty(sum.shape(), sum.options());
    own.copy_(sum);
    sum = own;
  }
  add_in_place(sum, gradient);
}

void GraphTask::arrive(Progress& progress) {
  if (--progress.pending > 0) return;
  ready_.push_back(&progress);
  std::push_heap(ready_.begin(), ready_.end(), runs_later);
}

void GraphTask::finish_callbacks() {
  for (std::size_t i = 0; i < callbacks.size(); ++i) {
    const auto done = callbacks[i].done;
    if (done) done();
  }
}

}  // namespace cohort
