#include "cohort/autograd/node.h"

#include <utility>

#include "autograd/meta.h"
#include "cohort/core/context.h"

namespace cohort {

Node::Node() : sequence_(Context::current().next_node++) {}

void intrusive_destroy(Node* node) {
  // A chain of 100,000 nodes must not become 100,000 nested destructors: the edges are taken out
  // before their node goes.
  std::vector<Edge> doomed = std::move(node->edges_);
  delete node;
  while (!doomed.empty()) {
    const Edge edge = std::move(doomed.back());
    doomed.pop_back();
    if (edge.node && edge.node->use_count() == 1) {
      for (Edge& next : edge.node->edges_) doomed.push_back(std::move(next));
      edge.node->edges_.clear();
    }
  }
}

SavedTensor::SavedTensor(const Tensor& tensor) {
  if (!tensor.defined()) return;
  // All but leaves are kept without what autograd knows of them. An output, which may get its
  // history only after the node is made, would otherwise own its own node.
  const AutogradMeta* meta = AutogradMeta::of(tensor);
  const bool is_leaf = meta != nullptr && !meta->grad_fn;
  tensor_ = is_leaf && Context::current().stand_ins == 0 ? tensor : tensor.detach();
  version_ = tensor.storage().version();
}

const Tensor& SavedTensor::get(const Node& node) const {
  if (!tensor_.defined()) return tensor_;
  const Storage& storage = tensor_.storage();
  if (storage.version() != version_) {
    throw AutogradError(str("[", node.name(), "] a tensor of shape ", tensor_.shape(),
                            " that backward needs was written in place after it was used (version ",
                            storage.version(), ", expected ", version_,
                            "); write to a copy instead"));
  }
  if (!storage.has_memory()) {
    throw AutogradError(str("[", node.name(), "] the memory of a tensor of shape ", tensor_.shape(),
                            " that backward needs has been released (a sharded parameter that was "
                            "used outside the forward of its unit?)"));
  }
  return tensor_;
}

bool recording(std::initializer_list<const Tensor*> inputs) {
  if (!Context::current().grad_enabled) return false;
  for (const Tensor* input : inputs) {
    if (input->defined() && input->requires_grad()) return true;
  }
  return false;
}

Edge gradient_edge(const Tensor& tensor) {
  if (!tensor.defined()) return {};
  AutogradMeta* meta = AutogradMeta::of(tensor);
  if (meta == nullptr) return {};
  if (meta->grad_fn) return {meta->grad_fn, meta->output};
  if (meta->accumulator == nullptr) {
    auto made = make_intrusive<AccumulateGrad>(tensor);
    meta->accumulator = made.get();
    return {made, 0};
  }
  return {IntrusivePtr<Node>(meta->accumulator), 0};
}

void connect(std::span<Tensor> outputs, IntrusivePtr<Node> node,  // NOLINT: callers give it up
             std::span<const Tensor* const> inputs) {
  node->edges_.reserve(inputs.size());
  for (const Tensor* input : inputs) node->edges_.push_back(gradient_edge(*input));
  node->output_count_ = static_cast<int>(outputs.size());
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!is_floating(outputs[i].dtype())) continue;
    auto meta = std::make_unique<AutogradMeta>();
    meta->grad_fn = node;
    meta->output = static_cast<int>(i);
    outputs[i].impl()->autograd = std::move(meta);
  }
}

}  // namespace cohort
