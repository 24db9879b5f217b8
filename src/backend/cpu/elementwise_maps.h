#pragma once

// The vector loops of the element-wise operations, one function per operation and type, compiled
// for several instruction sets; the finders return the one for this machine.

#include <cstddef>
#include <cstdint>

#include "backend/elementwise_kernels.h"

namespace cohort::backend::cpu {

// Elements of the type that is computed in; step 1, or 0 for a value that repeats.
template <typename T>
struct Operand {
  const T* data;
  std::int64_t step;
};

// out[i] = f(in[0].data[i], …) for i < count; `out` may be one of the inputs.
template <typename T>
using MapFn = void (*)(T* out, const Operand<T>* in, std::size_t count, ScalarParams params);

// Null where the operation has no meaning for the type.
MapFn<float> find_unary_f32(UnaryOp op, ScalarParams params);
MapFn<double> find_unary_f64(UnaryOp op, ScalarParams params);
MapFn<std::int64_t> find_unary_i64(UnaryOp op, ScalarParams params);
MapFn<float> find_binary_f32(BinaryOp op, ScalarParams params);
MapFn<double> find_binary_f64(BinaryOp op, ScalarParams params);
MapFn<std::int64_t> find_binary_i64(BinaryOp op, ScalarParams params);
MapFn<float> find_grad_f32(BinaryOp op, ScalarParams params);
MapFn<double> find_grad_f64(BinaryOp op, ScalarParams params);
MapFn<float> find_ternary_f32(TernaryOp op);
MapFn<double> find_ternary_f64(TernaryOp op);
MapFn<std::int64_t> find_ternary_i64(TernaryOp op);

}  // namespace cohort::backend::cpu
