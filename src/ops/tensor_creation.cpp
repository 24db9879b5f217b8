// Members of Tensor that make new tensors with the kernels of this layer.

#include "cohort/ops/random.h"
#include "ops/op.h"

namespace cohort {

Tensor Tensor::arange(std::int64_t count, const TensorOptions& options) {
  check(count >= 0, "[arange] a negative count, ", count);
  Tensor out = empty({count}, {options.dtype, options.device, false});
  op::backend_of(out).elementwise().arange(op::stream_of(out), out, 0, 1);
  if (options.requires_grad) out.set_requires_grad(true);
  return out;
}

Tensor Tensor::rand(const Shape& shape, const TensorOptions& options) {
  Tensor out = empty(shape, {options.dtype, options.device, false});
  uniform_(out, 0, 1, Context::current().generator);
  if (options.requires_grad) out.set_requires_grad(true);
  return out;
}

Tensor Tensor::randn(const Shape& shape, const TensorOptions& options) {
  Tensor out = empty(shape, {options.dtype, options.device, false});
  normal_(out, 0, 1, Context::current().generator);
  if (options.requires_grad) out.set_requires_grad(true);
  return out;
}

}  // namespace cohort
