#pragma once

#include "cohort/core/tensor.h"

namespace cohort {

// Product over the last two dimensions [.., m, k] x [.., k, n] -> [.., m, n], leading dimensions
// broadcast. Transposed operands (views by transpose()) are read in place. f32, f64, bf16 and f16;
// low-precision operands are accumulated in f32 and rounded once.
Tensor matmul(const Tensor& a, const Tensor& b);

// x [.., in] times weight^T [out, in] plus bias [out] (may be undefined) -> [.., out]. One GEMM;
// the gradients of weight and bias are written straight to their destinations.
Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias = {});

}  // namespace cohort
