#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "cohort/core/tensor.h"

namespace cohort {

class Node;
struct Progress;   // of the engine: a node's part of one backward
struct GraphTask;  // of the engine: one backward

// Where the gradient of an operation's input goes: output `output` of the operation that made it.
struct Edge {
  IntrusivePtr<Node> node;  // null: the input wants no gradient
  int output = 0;
};

// Where a node writes the gradient of one input: a slice of a bucket or flat gradient buffer that
// the leaf named as its destination, or fresh memory.
struct GradTarget {
  Tensor tensor;
  bool accumulate = false;  // true: add to what is there (beta 1); false: overwrite it (beta 0)
};

// What a node sees while it runs backward: the gradients of its outputs, and a place for those of
// its inputs. Implemented by the engine; lives for one call.
class GradFrame {
 public:
  virtual ~GradFrame() = default;

  // Gradient of output `i`; undefined when nothing flowed into it, which means zero.
  virtual const Tensor& grad(int output) const = 0;
  // Whether input `i` wants a gradient at all.
  virtual bool needs(int input) const = 0;
  // Hands over the gradient of input `i`; the node keeps no other handle that it writes to.
  virtual void set(int input, Tensor grad) = 0;
  // For nodes that can write a gradient in place: memory of `shape` and `dtype` for the gradient of
  // input `i`, which the node fills before it returns; no set() follows.
  virtual GradTarget target(int input, const Shape& shape, DType dtype) = 0;
};

// A tensor kept for backward, with the version it had. A saved *output* of the node does not keep
// the node alive, so that the graph has no cycles.
class SavedTensor {
 public:
  SavedTensor() = default;
  explicit SavedTensor(const Tensor& tensor);
  // The tensor. AutogradError naming `node` when it was written in place since.
  const Tensor& get(const Node& node) const;
  bool defined() const { return tensor_.defined(); }
  void reset() { tensor_ = {}; }

 private:
  Tensor tensor_;  // detached
  std::uint32_t version_ = 0;
};

// One operation of the graph, as backward sees it. An operation derives from it, keeps what it
// needs in SavedTensors and implements backward(). Belongs to the rank's host thread.
class Node : public RefCounted {
 public:
  Node();
  virtual ~Node() = default;

  virtual std::string_view name() const = 0;
  // Computes the inputs' gradients from the outputs'. Grad mode is off.
  virtual void backward(GradFrame& frame) = 0;
  // Drops saved tensors after the only backward (retain_graph false).
  virtual void release() = 0;

  // Edges of the inputs, in order; set by connect().
  const std::vector<Edge>& edges() const { return edges_; }
  int output_count() const { return output_count_; }
  // Nodes made later run earlier in backward.
  std::uint64_t sequence() const { return sequence_; }
  bool released() const { return released_; }
  // The node's part of the backward that is running; the engine's.
  Progress* progress = nullptr;

  using Hook = std::function<Tensor(const Tensor&)>;
  // Hooks on the gradient of an output, run in order of registration before backward(); a hook may
  // return a replacement, or an undefined tensor to keep the gradient.
  struct OutputHook {
    int output;
    std::uint64_t id;
    Hook hook;
  };
  std::vector<OutputHook>& output_hooks() { return output_hooks_; }

 private:
  friend struct GraphTask;
  friend void intrusive_destroy(Node* node);
  friend void connect(std::span<Tensor> outputs, IntrusivePtr<Node> node,
                      std::span<const Tensor* const> inputs);

  std::vector<Edge> edges_;
  std::vector<OutputHook> output_hooks_;
  std::uint64_t sequence_;
  int output_count_ = 1;
  bool released_ = false;
};

// Destroys a node and all that only it kept alive, without recursion.
void intrusive_destroy(Node* node);

// True when grad mode is on and one of the tensors requires a gradient. Undefined tensors do not.
bool recording(std::initializer_list<const Tensor*> inputs);
template <typename... Tensors>
bool recording(const Tensors&... inputs) {
  return recording({&inputs...});
}

// Makes `node` the origin of `outputs` and links it to `inputs`, which keep their order: input i of
// GradFrame is inputs[i]. Undefined inputs get no edge. Non-floating outputs stay without history.
void connect(std::span<Tensor> outputs, IntrusivePtr<Node> node,
             std::span<const Tensor* const> inputs);
template <typename... Tensors>
void connect(Tensor& output, IntrusivePtr<Node> node, const Tensors&... inputs) {
  const Tensor* const list[] = {&inputs...};
  connect(std::span<Tensor>(&output, 1), std::move(node), list);
}

}  // namespace cohort
