#pragma once

#include <cstdint>

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// out = f(x). `p` and `q` are the numbers in UnaryParams.
enum class UnaryOp : std::uint8_t {
  identity,
  neg,
  abs,
  add_scalar,  // x + p
  mul_scalar,  // x * p
  div_scalar,  // x / p
  clamp,       // p where x < p, q where x > q; NaN stays
  pow,         // x to the power p
  relu,        // NaN stays
  exp,
  log,
  sqrt,
  sin,
  cos,
  tanh,
  sigmoid,
  silu,
  gelu,
  gelu_tanh,
  isfinite,
};

// out = f(x, y). Those with a name of the form op_grad take the gradient of op's output as x.
enum class BinaryOp : std::uint8_t {
  add,
  sub,
  mul,
  div,
  maximum,  // NaN wins
  minimum,
  add_scaled,  // x + p * y
  equal,
  not_equal,
  less,
  less_equal,
  greater,
  greater_equal,
  keep_if,       // y ? x : 0
  keep_if_not,   // y ? 0 : x
  relu_grad,     // y: the output
  sqrt_grad,     // y: the output
  tanh_grad,     // y: the output
  sigmoid_grad,  // y: the output
  abs_grad,      // y: the input, as in all that follow
  sin_grad,
  cos_grad,
  silu_grad,
  gelu_grad,
  gelu_tanh_grad,
  clamp_grad,  // x where p <= y <= q, else 0
  pow_grad,    // x * p * y ^ (p - 1)
};

// out = f(x, y, z).
enum class TernaryOp : std::uint8_t {
  where,        // x ? y : z
  larger_grad,  // x where y > z, x / 2 where they are equal, else 0
  div_grad,     // -x * (y / z) / z: of y / z with respect to z
};

// Numbers of an operation; each names what it reads.
struct ScalarParams {
  double p = 0;
  double q = 0;
};

// Element-wise maps. Operands are already broadcast to the output's shape (stride 0), may have any
// strides and dtypes. The arithmetic is done in one type: f64 when an operand is f64, else f32 when
// one is floating, else i64 with wrap-around; each operand is converted to it, and the result is
// rounded once to out's dtype. An output may be one of the inputs, element for element, but must
// not overlap one otherwise. No element's bits depend on its position or the operands' strides.
class ElementwiseKernels {
 public:
  virtual ~ElementwiseKernels() = default;

  // out[i] = value, converted to out's dtype.
  virtual void fill(const Stream& stream, const View& out, double value) const = 0;
  // out[i] = in[i], converted to out's dtype; any strides. Floating numbers go to integers
  // truncated and saturated, NaN as 0; integers go to narrower ones modulo 2^bits.
  virtual void copy(const Stream& stream, const View& out, const View& in) const = 0;
  // out[i] += in[i]: how gradients are added into their destinations.
  virtual void accumulate(const Stream& stream, const View& out, const View& in) const = 0;
  // out[i] = start + i * step, over a contiguous output.
  virtual void arange(const Stream& stream, const View& out, double start, double step) const = 0;

  virtual void unary(const Stream& stream, UnaryOp op, const View& out, const View& x,
                     ScalarParams params = {}) const = 0;
  virtual void binary(const Stream& stream, BinaryOp op, const View& out, const View& x,
                      const View& y, ScalarParams params = {}) const = 0;
  virtual void ternary(const Stream& stream, TernaryOp op, const View& out, const View& x,
                       const View& y, const View& z) const = 0;
};

}  // namespace cohort::backend
