// Element-wise operations of one tensor.

#include <cmath>
#include <utility>

#include "cohort/ops/elementwise.h"
#include "ops/op.h"

namespace cohort {
namespace {

using backend::BinaryOp;
using backend::ScalarParams;
using backend::UnaryOp;

// dx = f(dout): what is linear in x, and needs nothing saved.
class LinearBackward final : public Node {
 public:
  LinearBackward(std::string_view name, UnaryOp op, double factor)
      : name_(name), op_(op), factor_(factor) {}
  std::string_view name() const override { return name_; }
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    if (op_ == UnaryOp::identity) return frame.set(0, grad);
    op::give_written(frame, 0, grad.shape(), grad.dtype(), grad.options(), grad.shape(),
                     [&](const Tensor& out) {
                       op::backend_of(grad).elementwise().unary(op::stream_of(grad), op_, out, grad,
                                                                {.p = factor_});
                     });
  }
  void release() override {}

 private:
  std::string_view name_;
  UnaryOp op_;
  double factor_;
};

// dx = f(dout, saved), where the input or the output is saved.
class MapBackward final : public Node {
 public:
  MapBackward(std::string_view name, BinaryOp op, ScalarParams params, const Tensor& saved)
      : name_(name), op_(op), params_(params), saved_(saved) {}
  std::string_view name() const override { return name_; }
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    const Tensor& saved = saved_.get(*this);
    op::give_written(frame, 0, grad.shape(), grad.dtype(), grad.options(), grad.shape(),
                     [&](const Tensor& out) {
                       op::backend_of(grad).elementwise().binary(op::stream_of(grad), op_, out,
                                                                 grad, saved, params_);
                     });
  }
  void release() override { saved_.reset(); }

 private:
  std::string_view name_;
  BinaryOp op_;
  ScalarParams params_;
  SavedTensor saved_;
};

Tensor map(UnaryOp op, const Tensor& a, DType dtype, ScalarParams params = {}) {
  Tensor out = Tensor::empty(a.shape(), {dtype, a.device(), false});
  op::backend_of(a).elementwise().unary(op::stream_of(a), op, out, a, params);
  return out;
}

// The dtype of a result. Each is asked for first, and so it is here that a missing operand is
// found.
DType same(const char* operation, const Tensor& a) {
  check(a.defined(), "[", operation, "] the operand is undefined");
  return a.dtype();
}

// Of functions that are fractional even of integers.
DType fractional(const char* operation, const Tensor& a) {
  return is_floating(same(operation, a)) ? a.dtype() : DType::f32;
}

// Where a meets numbers that the result may equal.
DType with_scalars(const char* operation, const Tensor& a, double p, double q = 0) {
  const bool whole = std::trunc(p) == p && std::trunc(q) == q;
  return is_floating(same(operation, a)) || whole ? a.dtype() : DType::f32;
}

enum class Saves { input, output };

// `op` with the derivative `grad`, of the saved tensor.
Tensor differentiable(UnaryOp op, std::string_view node_name, BinaryOp grad, Saves saves,
                      const Tensor& a, DType dtype, ScalarParams params = {}) {
  Tensor out = map(op, a, dtype, params);
  if (recording(a)) {
    const Tensor& saved = saves == Saves::input ? a : out;
    connect(out, make_intrusive<MapBackward>(node_name, grad, params, saved), a);
  }
  return out;
}

// `op` with the derivative `grad`, which is `grad` of the outputs' gradient alone.
Tensor linear(UnaryOp op, std::string_view node_name, UnaryOp grad, const Tensor& a, DType dtype,
              double factor = 0) {
  Tensor out = map(op, a, dtype, {.p = factor});
  if (recording(a)) connect(out, make_intrusive<LinearBackward>(node_name, grad, factor), a);
  return out;
}

}  // namespace

Tensor add(const Tensor& a, double b) {
  return linear(UnaryOp::add_scalar, "AddBackward", UnaryOp::identity, a, with_scalars("add", a, b),
                b);
}

Tensor sub(const Tensor& a, double b) {
  return linear(UnaryOp::add_scalar, "SubBackward", UnaryOp::identity, a, with_scalars("sub", a, b),
                -b);
}

Tensor mul(const Tensor& a, double b) {
  return linear(UnaryOp::mul_scalar, "MulBackward", UnaryOp::mul_scalar, a,
                with_scalars("mul", a, b), b);
}

Tensor div(const Tensor& a, double b) {
  return linear(UnaryOp::div_scalar, "DivBackward", UnaryOp::div_scalar, a, fractional("div", a),
                b);
}

Tensor neg(const Tensor& a) {
  return linear(UnaryOp::neg, "NegBackward", UnaryOp::neg, a, same("neg", a));
}

Tensor pow(const Tensor& a, double exponent) {
  const bool whole =
      !is_floating(same("pow", a)) && exponent >= 0 && std::trunc(exponent) == exponent;
  return differentiable(UnaryOp::pow, "PowBackward", BinaryOp::pow_grad, Saves::input, a,
                        whole ? a.dtype() : fractional("pow", a), {.p = exponent});
}

Tensor exp(const Tensor& a) {
  return differentiable(UnaryOp::exp, "ExpBackward", BinaryOp::mul, Saves::output, a,
                        fractional("exp", a));
}

Tensor log(const Tensor& a) {
  return differentiable(UnaryOp::log, "LogBackward", BinaryOp::div, Saves::input, a,
                        fractional("log", a));
}

Tensor sqrt(const Tensor& a) {
  return differentiable(UnaryOp::sqrt, "SqrtBackward", BinaryOp::sqrt_grad, Saves::output, a,
                        fractional("sqrt", a));
}

Tensor abs(const Tensor& a) {
  return differentiable(UnaryOp::abs, "AbsBackward", BinaryOp::abs_grad, Saves::input, a,
                        same("abs", a));
}

Tensor sin(const Tensor& a) {
  return differentiable(UnaryOp::sin, "SinBackward", BinaryOp::sin_grad, Saves::input, a,
                        fractional("sin", a));
}

Tensor cos(const Tensor& a) {
  return differentiable(UnaryOp::cos, "CosBackward", BinaryOp::cos_grad, Saves::input, a,
                        fractional("cos", a));
}

Tensor clamp(const Tensor& a, double low, double high) {
  check(low <= high, "[clamp] the lower bound ", low, " exceeds the upper one, ", high);
  return differentiable(UnaryOp::clamp, "ClampBackward", BinaryOp::clamp_grad, Saves::input, a,
                        with_scalars("clamp", a, low, high), {.p = low, .q = high});
}

Tensor relu(const Tensor& a) {
  return differentiable(UnaryOp::relu, "ReluBackward", BinaryOp::relu_grad, Saves::output, a,
                        same("relu", a));
}

Tensor gelu(const Tensor& a, GeluApproximate approximate) {
  const bool exact = approximate == GeluApproximate::none;
  return differentiable(exact ? UnaryOp::gelu : UnaryOp::gelu_tanh, "GeluBackward",
                        exact ? BinaryOp::gelu_grad : BinaryOp::gelu_tanh_grad, Saves::input, a,
                        fractional("gelu", a));
}

Tensor silu(const Tensor& a) {
  return differentiable(UnaryOp::silu, "SiluBackward", BinaryOp::silu_grad, Saves::input, a,
                        fractional("silu", a));
}

Tensor tanh(const Tensor& a) {
  return differentiable(UnaryOp::tanh, "TanhBackward", BinaryOp::tanh_grad, Saves::output, a,
                        fractional("tanh", a));
}

Tensor sigmoid(const Tensor& a) {
  return differentiable(UnaryOp::sigmoid, "SigmoidBackward", BinaryOp::sigmoid_grad, Saves::output,
                        a, fractional("sigmoid", a));
}

Tensor isfinite(const Tensor& a) {
  same("isfinite", a);
  return map(UnaryOp::isfinite, a, DType::boolean);
}

Tensor& mul_(Tensor& a, double b) {
  op::begin_write("mul_", a);
  check<DTypeError>(with_scalars("mul_", a, b) == a.dtype(), "[mul_] the product of a tensor of ",
                    a.dtype(), " with ", b, " does not fit into it; convert it with to(f32)");
  op::backend_of(a).elementwise().unary(op::stream_of(a), UnaryOp::mul_scalar, a, a, {.p = b});
  return a;
}

Tensor& clamp_(Tensor& a, double low, double high) {
  check(low <= high, "[clamp_] the lower bound ", low, " exceeds the upper one, ", high);
  op::begin_write("clamp_", a);
  check<DTypeError>(with_scalars("clamp_", a, low, high) == a.dtype(), "[clamp_] the bounds ", low,
                    " and ", high, " do not fit into a tensor of ", same("clamp_", a));
  op::backend_of(a).elementwise().unary(op::stream_of(a), UnaryOp::clamp, a, a,
                                        {.p = low, .q = high});
  return a;
}

}  // namespace cohort
