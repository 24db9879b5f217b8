#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cohort/autograd/node.h"
#include "cohort/core/tensor.h"

namespace cohort {

class AccumulateGrad;

// What autograd attaches to a tensor that requires a gradient.
struct AutogradMeta final : AutogradSlot {
  // Of every tensor with a history: the operation that made it, and which of its outputs it is.
  IntrusivePtr<Node> grad_fn;
  int output = 0;

  // Of leaves.
  Tensor grad;
  Tensor destination;                     // set_grad_destination
  AccumulateGrad* accumulator = nullptr;  // not owned: the graph owns it, and it clears this
  std::string manager;                    // set_grad_manager
  struct LeafHook {
    std::uint64_t id;
    std::function<Tensor(const Tensor&)> hook;
  };
  std::vector<LeafHook> hooks;
  struct PostHook {
    std::uint64_t id;
    std::function<void(const Tensor&)> hook;
  };
  std::vector<PostHook> post_hooks;

  static AutogradMeta* of(const Tensor& tensor) {
    return static_cast<AutogradMeta*>(tensor.impl()->autograd.get());
  }
};

// The end of the graph at a leaf: adds what arrives to the leaf's gradient.
class AccumulateGrad final : public Node {
 public:
  explicit AccumulateGrad(const Tensor& leaf);
  ~AccumulateGrad() override;

  std::string_view name() const override { return "AccumulateGrad"; }
  // The engine calls accumulate() instead.
  void backward(GradFrame& frame) override;
  void release() override {}

  const Tensor& leaf() const { return leaf_; }
  // The leaf's own, also while another tensor's stands in for it (parallel/parameter_cast.h).
  AutogradMeta& meta() const { return *meta_; }

  // Where a node may write the leaf's gradient itself, or an undefined tensor.
  GradTarget direct_target(const Shape& shape, DType dtype) const;
  // After a write to direct_target(): the leaf's gradient is what was written.
  void adopt_target(const GradTarget& target);
  // Adds `gradient` (kept by nobody else when `exclusive`) to the leaf's.
  void accumulate(Tensor gradient, bool exclusive);
  void run_post_hooks();

 private:
  Tensor leaf_;  // keeps meta_ alive
  AutogradMeta* meta_;
};

// The edge along which the gradient of `tensor` flows; null when it wants none.
Edge gradient_edge(const Tensor& tensor);

// Adds `value` to `sum` in place, through the backend.
void add_in_place(const Tensor& sum, const Tensor& value);

}  // namespace cohort
