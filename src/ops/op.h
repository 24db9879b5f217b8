#pragma once

// What the operations of this folder share.

#include "backend/backend.h"
#include "cohort/autograd/node.h"
#include "cohort/core/context.h"
#include "cohort/core/tensor.h"

namespace cohort::op {

inline const backend::Backend& backend_of(const Tensor& tensor) {
  return backend::backend_for(tensor.device().type);
}
inline const Stream& stream_of(const Tensor& tensor) {
  return Context::current().stream(tensor.device());
}

// Throws InvalidArgument unless both are defined and on one device.
void check_same_device(const char* operation, const Tensor& a, const Tensor& b);
// Throws AutogradError when writing `tensor` would falsify a graph, InvalidArgument when several of
// its indices name one element; else counts the write.
void begin_write(const char* operation, const Tensor& tensor);
// `source` itself, or a copy when it shares memory with `target` other than element for element.
Tensor disjoint(const Tensor& source, const Tensor& target);

// The view with sizes of 1 put in front until it has `rank` dimensions.
backend::View with_rank(const backend::View& view, int rank);
// target = (or +=) `value` summed over the dimensions along which target's shape was broadcast.
void sum_into(const GradTarget& target, const Tensor& value);

// Hands over the gradient of input `i`, which had `shape` and `dtype`, given that of its broadcast.
void give(GradFrame& frame, int i, const Tensor& grad, const Shape& shape, DType dtype);

// The same, with the gradient still to be computed: write(out) enqueues the kernel that writes it
// to a contiguous tensor of shape `full`. Where nothing is summed it goes straight to its target.
template <typename Write>
void give_written(GradFrame& frame, int i, const Shape& shape, DType dtype,
                  const TensorOptions& full_options, const Shape& full, Write&& write) {
  if (shape == full) {
    const GradTarget target = frame.target(i, shape, dtype);
    if (!target.accumulate) return write(target.tensor);
    Tensor value = Tensor::empty(full, full_options);
    write(value);
    return sum_into(target, value);
  }
  Tensor value = Tensor::empty(full, full_options);
  write(value);
  sum_into(frame.target(i, shape, dtype), value);
}

}  // namespace cohort::op
