#include "ops/op.h"

namespace cohort::op {

using backend::View;

void check_same_device(const char* operation, const Tensor& a, const Tensor& b) {
  check(a.defined() && b.defined(), "[", operation, "] an operand is undefined");
  if (a.device() == b.device()) return;
  throw InvalidArgument(str("[", operation, "] operands on ", a.device(), " and ", b.device(),
                            "; bring one over with to(device)"));
}

void begin_write(const char* operation, const Tensor& tensor) {
  check(tensor.defined(), "[", operation, "] the tensor is undefined");
  check<AutogradError>(!(Context::current().grad_enabled && tensor.requires_grad()), "[", operation,
                       "] in-place write to a tensor of shape ", tensor.shape(),
                       " that requires a gradient; wrap it in NoGrad or write to detach()");
  for (int i = 0; i < tensor.rank(); ++i) {
    check(tensor.shape()[i] <= 1 || tensor.strides()[i] != 0, "[", operation,
          "] several elements of the expanded tensor share memory; clone() it first");
  }
  tensor.storage().bump_version();
}

Tensor disjoint(const Tensor& source, const Tensor& target) {
  if (&source.storage() != &target.storage()) return source;
  const bool same = source.storage_offset() == target.storage_offset() &&
                    source.shape() == target.shape() && source.strides() == target.strides();
  if (same) return source;
  Tensor copy = Tensor::empty(source.shape(), source.options());
  copy.copy_(source.detach());
  return copy;
}

View with_rank(const View& view, int rank) {
  View result = view;
  while (result.shape.size() < rank) {
    result.shape.insert(0, 1);
    result.strides.insert(0, 0);
  }
  return result;
}

void sum_into(const GradTarget& target, const Tensor& value) {
  if (target.tensor.numel() == value.numel()) {
    const View out = with_rank(target.tensor, value.rank());
    const backend::ElementwiseKernels& kernels = backend_of(value).elementwise();
    if (target.accumulate) return kernels.accumulate(stream_of(value), out, value);
    return kernels.copy(stream_of(value), out, value);
  }
  Tensor packed = value;
  if (!value.is_contiguous()) {
    packed = Tensor::empty(value.shape(), value.options()).copy_(value.detach());
  }
  backend_of(value).reduce().sum(stream_of(value), with_rank(target.tensor, value.rank()), packed,
                                 target.accumulate);
}

void give(GradFrame& frame, int i, const Tensor& grad, const Shape& shape, DType dtype) {
  if (grad.shape() == shape && grad.dtype() == dtype) {
    frame.set(i, grad);
  } else {
    sum_into(frame.target(i, shape, dtype), grad);
  }
}

}  // namespace cohort::op
