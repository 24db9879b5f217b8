// AccumulateGrad: gradients arriving at leaves, and their destinations.

#include <utility>

#include "autograd/meta.h"
#include "backend/backend.h"
#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"

namespace cohort {

namespace {

// Whether `gradient` lies in memory as the leaf's gradients are to.
bool same_layout(const Tensor& gradient, const Tensor& leaf) {
  if (leaf.is_contiguous()) return gradient.is_contiguous();
  return gradient.strides() == dense_strides(leaf);
}

}  // namespace

void add_in_place(const Tensor& sum, const Tensor& value) {
  sum.storage().bump_version();
  backend::backend_for(sum.device().type)
      .elementwise()
      .accumulate(Context::current().stream(sum.device()), sum, value);
}

AccumulateGrad::AccumulateGrad(const Tensor& leaf) : leaf_(leaf), meta_(AutogradMeta::of(leaf)) {}

AccumulateGrad::~AccumulateGrad() {
  meta().accumulator = nullptr;
}

void AccumulateGrad::backward(GradFrame&) {
  throw AutogradError("[AccumulateGrad] the engine runs accumulate() instead");
}

GradTarget AccumulateGrad::direct_target(const Shape& shape, DType dtype) const {
  const AutogradMeta& m = meta();
  if (!m.hooks.empty() || dtype != leaf_.dtype()) return {};
  if (m.grad.defined()) {
    // The gradient itself, which is the destination where there is one.
    if (m.grad.shape() != shape || m.grad.dtype() != dtype || !m.grad.is_contiguous()) return {};
    if (m.destination.defined() && !m.grad.is_same(m.destination)) return {};
    return {m.grad, /*accumulate=*/true};
  }
  if (!m.destination.defined() || m.destination.shape() != shape) return {};
  if (!m.destination.is_contiguous()) return {};
  return {m.destination, /*accumulate=*/false};
}

void AccumulateGrad::adopt_target(const GradTarget& target) {
  target.tensor.storage().bump_version();
  meta().grad = target.tensor;
}

void AccumulateGrad::accumulate(Tensor gradient, bool exclusive) {
  AutogradMeta& m = meta();
  check<ShapeError>(gradient.shape() == leaf_.shape(), "[backward] a gradient of shape ",
                    gradient.shape(), " arrived at a leaf of shape ", leaf_.shape());
  const MemoryCategoryScope scope(MemoryCategory::gradients);
  if (m.destination.defined()) {
    if (m.grad.defined() && !m.grad.is_same(m.destination)) m.destination.copy_(m.grad);
    if (m.grad.defined()) {
      add_in_place(m.destination, gradient);
    } else {
      m.destination.copy_(gradient);
    }
    m.grad = m.destination;
  } else if (m.grad.defined()) {
    add_in_place(m.grad, gradient);
  } else if (exclusive && same_layout(gradient, leaf_) && gradient.dtype() == leaf_.dtype()) {
    m.grad = std::move(gradient);
  } else {
    Tensor own = Tensor::empty_like(leaf_);
    own.copy_(gradient);
    m.grad = own;
  }
}

void AccumulateGrad::run_post_hooks() {
  if (meta().post_hooks.empty()) return;
  // A copy of the list: a hook may remove itself or add others.
  for (const auto& entry : std::vector(meta().post_hooks)) entry.hook(leaf_);
}

void set_grad_destination(const Tensor& leaf, const Tensor& destination) {
  check<AutogradError>(leaf.requires_grad() && leaf.is_leaf(),
                       "[set_grad_destination] needs a leaf that requires a gradient");
  AutogradMeta& m = *AutogradMeta::of(leaf);
  if (!destination.defined()) {
    m.destination = {};
    return;
  }
  check<ShapeError>(destination.shape() == leaf.shape(), "[set_grad_destination] shape ",
                    destination.shape(), " for a leaf of shape ", leaf.shape());
  check<DTypeError>(destination.dtype() == leaf.dtype(), "[set_grad_destination] dtype ",
                    destination.dtype(), " for a leaf of dtype ", leaf.dtype());
  check(destination.device() == leaf.device(), "[set_grad_destination] destination on ",
        destination.device(), ", leaf on ", leaf.device());
  m.destination = destination.requires_grad() ? destination.detach() : destination;
  if (m.grad.defined() && !m.grad.is_same(m.destination)) {
    const NoGrad no_grad;
    m.destination.copy_(m.grad);
    m.grad = m.destination;
  }
}

const Tensor& grad_destination(const Tensor& leaf) {
  static const Tensor none;
  const AutogradMeta* m = AutogradMeta::of(leaf);
  return m != nullptr ? m->destination : none;
}

}  // namespace cohort
