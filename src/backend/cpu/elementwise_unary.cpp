#include <cmath>

#include "backend/cpu/elementwise_maps.h"
#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise_unary.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/elementwise_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

// Common exponents need no logarithm.
template <typename T>
MapFn<T> find_pow(double exponent) {
  if (exponent == 0)
    return make_map<1, T>([](auto d, const auto&, auto) HWY_ATTR { return constant(d, 1); });
  if (exponent == 1) return make_map<1, T>([](auto, const auto&, auto x) HWY_ATTR { return x; });
  if (exponent == 2)
    return make_map<1, T>([](auto, const auto&, auto x) HWY_ATTR { return hn::Mul(x, x); });
  if (exponent == 3)
    return make_map<1, T>([](auto, const auto&, auto x)
                              HWY_ATTR { return hn::Mul(hn::Mul(x, x), x); });
  if (exponent == 0.5)
    return make_map<1, T>([](auto, const auto&, auto x) HWY_ATTR { return hn::Sqrt(x); });
  if (exponent == -0.5)
    return make_map<1, T>([](auto d, const auto&, auto x)
                              HWY_ATTR { return hn::Div(constant(d, 1), hn::Sqrt(x)); });
  if (exponent == -1)
    return make_map<1, T>([](auto d, const auto&, auto x)
                              HWY_ATTR { return hn::Div(constant(d, 1), x); });
  return make_map<1, T>([](auto d, const auto& c, auto x) HWY_ATTR {
    const auto power = hn::GetLane(c.p);
    return by_lane(d, x, [power](auto lane) { return std::pow(lane, power); });
  });
}

template <typename T>
MapFn<T> unary(UnaryOp op, ScalarParams params) {
  switch (op) {
    case UnaryOp::identity:
      return make_map<1, T>([](auto, const auto&, auto x) HWY_ATTR { return x; });
    case UnaryOp::neg:
      return make_map<1, T>([](auto, const auto&, auto x) HWY_ATTR { return hn::Neg(x); });
    case UnaryOp::abs:
      return make_map<1, T>([](auto, const auto&, auto x) HWY_ATTR { return hn::Abs(x); });
    case UnaryOp::add_scalar:
      return make_map<1, T>([](auto, const auto& c, auto x) HWY_ATTR { return hn::Add(x, c.p); });
    case UnaryOp::mul_scalar:
      return make_map<1, T>([](auto, const auto& c, auto x) HWY_ATTR { return hn::Mul(x, c.p); });
    case UnaryOp::div_scalar:
      return make_map<1, T>([](auto, const auto& c, auto x) HWY_ATTR { return hn::Div(x, c.p); });
    case UnaryOp::clamp:
      return make_map<1, T>([](auto, const auto& c, auto x) HWY_ATTR {
        return hn::IfThenElse(hn::Lt(x, c.p), c.p, hn::IfThenElse(hn::Gt(x, c.q), c.q, x));
      });
    case UnaryOp::pow:
      return find_pow<T>(params.p);
    case UnaryOp::relu:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR {
        return hn::IfThenElse(hn::Le(x, hn::Zero(d)), hn::Zero(d), x);
      });
    case UnaryOp::exp:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR { return vexp(d, x); });
    case UnaryOp::log:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR { return vlog(d, x); });
    case UnaryOp::sqrt:
      return make_map<1, T>([](auto, const auto&, auto x) HWY_ATTR { return hn::Sqrt(x); });
    case UnaryOp::sin:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR { return vsin(d, x); });
    case UnaryOp::cos:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR { return vcos(d, x); });
    case UnaryOp::tanh:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR { return vtanh(d, x); });
    case UnaryOp::sigmoid:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR { return vsigmoid(d, x); });
    case UnaryOp::silu:
      return make_map<1, T>([](auto d, const auto&, auto x)
                                HWY_ATTR { return hn::Mul(x, vsigmoid(d, x)); });
    case UnaryOp::gelu:
      return make_map<1, T>([](auto d, const auto&, auto x)
                                HWY_ATTR { return hn::Mul(x, normal(d, x).integral); });
    case UnaryOp::gelu_tanh:
      return make_map<1, T>([](auto d, const auto&, auto x)
                                HWY_ATTR { return hn::Mul(x, gelu_tanh(d, x).gate); });
    case UnaryOp::isfinite:
      return make_map<1, T>([](auto d, const auto&, auto x) HWY_ATTR {
        return hn::IfThenElseZero(hn::IsFinite(x), constant(d, 1));
      });
  }
  return nullptr;
}

MapFn<float> unary_f32(UnaryOp op, ScalarParams params) {
  return unary<float>(op, params);
}
MapFn<double> unary_f64(UnaryOp op, ScalarParams params) {
  return unary<double>(op, params);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(unary_f32);
HWY_EXPORT(unary_f64);

MapFn<float> find_unary_f32(UnaryOp op, ScalarParams params) {
  return HWY_DYNAMIC_DISPATCH(unary_f32)(op, params);
}
MapFn<double> find_unary_f64(UnaryOp op, ScalarParams params) {
  return HWY_DYNAMIC_DISPATCH(unary_f64)(op, params);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
