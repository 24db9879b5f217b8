#include <cmath>

#include "backend/cpu/elementwise_maps.h"
#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise_grad.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/elementwise_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

// Of y ^ p: x * p * y ^ (p - 1). Common exponents need no logarithm.
template <typename T>
MapFn<T> find_pow_grad(double exponent) {
  if (exponent == 0)
    return make_map<2, T>([](auto d, const auto&, auto, auto) HWY_ATTR { return hn::Zero(d); });
  if (exponent == 1)
    return make_map<2, T>([](auto, const auto&, auto x, auto) HWY_ATTR { return x; });
  if (exponent == 2)
    return make_map<2, T>([](auto, const auto&, auto x, auto y)
                              HWY_ATTR { return hn::Mul(x, hn::Add(y, y)); });
  if (exponent == 3)
    return make_map<2, T>([](auto, const auto& c, auto x, auto y)
                              HWY_ATTR { return hn::Mul(x, hn::Mul(c.p, hn::Mul(y, y))); });
  if (exponent == 0.5)
    return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
      return hn::Div(x, hn::Mul(constant(d, 2), hn::Sqrt(y)));
    });
  if (exponent == -1)
    return make_map<2, T>([](auto, const auto&, auto x, auto y)
                              HWY_ATTR { return hn::Neg(hn::Div(x, hn::Mul(y, y))); });
  return make_map<2, T>([](auto d, const auto& c, auto x, auto y) HWY_ATTR {
    const auto power = hn::GetLane(c.p) - 1;
    const auto slope = by_lane(d, y, [power](auto lane) { return std::pow(lane, power); });
    return hn::Mul(hn::Mul(x, c.p), slope);
  });
}

template <typename T>
MapFn<T> grad(BinaryOp op, ScalarParams params) {
  switch (op) {
    case BinaryOp::relu_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::IfThenElseZero(hn::Gt(y, hn::Zero(d)), x); });
    case BinaryOp::sqrt_grad:
      return make_map<2, T>([](auto, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::Div(x, hn::Add(y, y)); });
    case BinaryOp::tanh_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::Mul(x, hn::NegMulAdd(y, y, constant(d, 1)));
      });
    case BinaryOp::sigmoid_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::Mul(x, hn::Mul(y, hn::Sub(constant(d, 1), y)));
      });
    case BinaryOp::abs_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenZeroElse(hn::Eq(y, hn::Zero(d)), hn::Xor(x, hn::And(hn::SignBit(d), y)));
      });
    case BinaryOp::sin_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::Mul(x, vcos(d, y)); });
    case BinaryOp::cos_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::Neg(hn::Mul(x, vsin(d, y))); });
    case BinaryOp::silu_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        const auto one = constant(d, 1);
        const auto s = vsigmoid(d, y);
        return hn::Mul(x, hn::Mul(s, hn::MulAdd(y, hn::Sub(one, s), one)));
      });
    case BinaryOp::gelu_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        const auto [density, integral] = normal(d, y);
        return hn::Mul(x, hn::MulAdd(y, density, integral));
      });
    case BinaryOp::gelu_tanh_grad:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        const auto [gate, slope] = gelu_tanh(d, y);
        const auto rise = hn::Mul(hn::Mul(gate, hn::Sub(constant(d, 1), gate)), slope);
        return hn::Mul(x, hn::MulAdd(y, rise, gate));
      });
    case BinaryOp::clamp_grad:
      return make_map<2, T>([](auto, const auto& c, auto x, auto y) HWY_ATTR {
        return hn::IfThenElseZero(hn::And(hn::Ge(y, c.p), hn::Le(y, c.q)), x);
      });
    case BinaryOp::pow_grad:
      return find_pow_grad<T>(params.p);
    default:
      return nullptr;
  }
}

MapFn<float> grad_f32(BinaryOp op, ScalarParams params) {
  return grad<float>(op, params);
}
MapFn<double> grad_f64(BinaryOp op, ScalarParams params) {
  return grad<double>(op, params);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(grad_f32);
HWY_EXPORT(grad_f64);

MapFn<float> find_grad_f32(BinaryOp op, ScalarParams params) {
  return HWY_DYNAMIC_DISPATCH(grad_f32)(op, params);
}
MapFn<double> find_grad_f64(BinaryOp op, ScalarParams params) {
  return HWY_DYNAMIC_DISPATCH(grad_f64)(op, params);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
