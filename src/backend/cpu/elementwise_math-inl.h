// Transcendental functions on vectors, for the instruction set being compiled. Largest errors, as
// measured by elementwise_test.cpp against the standard library in double (ulp):
//   exp 1 (f64 beyond 706: 3), log 4, tanh 4, sin and cos 3; normal distribution 7 from -2 upwards,
//   and x^2 below it (in f32 with FMA: 7 too).

#if defined(COHORT_ELEMENTWISE_MATH_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COHORT_ELEMENTWISE_MATH_INL
#undef COHORT_ELEMENTWISE_MATH_INL
#else
#define COHORT_ELEMENTWISE_MATH_INL
#endif

#include <cmath>
#include <limits>

#include "backend/cpu/elementwise_map-inl.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

template <class D>
HWY_INLINE auto constant(D d, double value) {
  return hn::Set(d, static_cast<hn::TFromD<D>>(value));
}

// Highway's functions are specified for finite arguments of a range; these keep NaN and infinities.

template <class D, class V>
HWY_INLINE V vexp(D d, V x) {
  V result;
  if constexpr (sizeof(hn::TFromD<D>) == 4) {
    result = hn::Exp(d, hn::Min(x, constant(d, 104)));  // e^104 is beyond f32 already
  } else {
    // Highway's ends at e^706, f64 at e^709.8: there, square the root.
    const auto large = hn::Gt(x, constant(d, 706));
    const V bounded = hn::Min(x, constant(d, 1400));
    const V part = hn::Exp(d, hn::IfThenElse(large, hn::Mul(bounded, constant(d, 0.5)), bounded));
    result = hn::IfThenElse(large, hn::Mul(part, part), part);
  }
  return hn::IfThenElse(hn::IsNaN(x), x, result);
}

template <class D, class V>
HWY_INLINE V vlog(D d, V x) {
  using T = hn::TFromD<D>;
  const V zero = hn::Zero(d);
  const V infinity = hn::Set(d, std::numeric_limits<T>::infinity());
  V result = hn::Log(d, x);
  result = hn::IfThenElse(hn::Eq(x, infinity), infinity, result);
  result = hn::IfThenElse(hn::Eq(x, zero), hn::Neg(infinity), result);
  const V nan = hn::Set(d, std::numeric_limits<T>::quiet_NaN());
  return hn::IfThenElse(hn::Ge(x, zero), result, nan);
}

template <class D, class V>
HWY_INLINE V vtanh(D d, V x) {
  return hn::IfThenElse(hn::IsNaN(x), x, hn::Tanh(d, x));
}

// Highway reduces arguments of at most 39000; the rare larger lane goes to the standard library.
template <class D, class V>
HWY_INLINE V vsin(D d, V x) {
  const auto in_range = hn::Le(hn::Abs(x), constant(d, 39000));
  const V result = hn::Sin(d, hn::IfThenElseZero(in_range, x));
  if (HWY_LIKELY(hn::AllTrue(d, in_range))) return result;
  return hn::IfThenElse(in_range, result, by_lane(d, x, [](auto lane) { return std::sin(lane); }));
}

template <class D, class V>
HWY_INLINE V vcos(D d, V x) {
  const auto in_range = hn::Le(hn::Abs(x), constant(d, 39000));
  const V result = hn::Cos(d, hn::IfThenElseZero(in_range, x));
  if (HWY_LIKELY(hn::AllTrue(d, in_range))) return result;
  return hn::IfThenElse(in_range, result, by_lane(d, x, [](auto lane) { return std::cos(lane); }));
}

template <class D, class V>
HWY_INLINE V vsigmoid(D d, V x) {
  const V one = constant(d, 1);
  return hn::Div(one, hn::Add(one, vexp(d, hn::Neg(x))));
}

// The standard normal distribution: its density and its integral up to x.
template <class V>
struct Normal {
  V density;
  V integral;
};

// f64: the C library's erfc, lane by lane; f64 serves checks and not speed.
template <class D, class V>
requires(sizeof(hn::TFromD<D>) == 8) HWY_INLINE Normal<V> normal(D d, V x) {
  const V half_square = hn::Mul(hn::Mul(x, x), constant(d, 0.5));
  const V density = hn::Mul(vexp(d, hn::Neg(half_square)), constant(d, 0.3989422804014326779));
  const V integral =
      by_lane(d, x, [](double lane) { return 0.5 * std::erfc(lane * -0.70710678118654752440); });
  return {density, integral};
}

// f32: the tail beyond u = |x| is exp(-u^2 / 2) * t * P(t) with t = 1 / (1 + 0.3 u). P has degree 9
// and was fitted to the tail by weighted least squares at Chebyshev nodes for u in [0, 14.6], where
// the relative error is 3.5e-9; beyond, the tail is less than the smallest float.
template <class D, class V>
requires(sizeof(hn::TFromD<D>) == 4) HWY_INLINE Normal<V> normal(D d, V x) {
  constexpr float kTail[] = {0.11968670040369034f, 0.11957167088985443f,  0.11023654043674469f,
                             0.07838468998670578f, 0.09617054462432861f,  -0.07944797724485397f,
                             0.19181281328201294f, -0.22823402285575867f, 0.11244400590658188f,
                             -0.02062496542930603f};
  const V one = constant(d, 1);
  const V u = hn::Min(hn::Abs(x), constant(d, 15));
  // exp(-u^2 / 2) would lose as many ulp as u^2 / 2 is large: the square's rounding error, which
  // FMA gives exactly, goes into a second factor.
  const V square = hn::Mul(u, u);
  const V rounding = hn::Mul(hn::MulSub(u, u, square), constant(d, 0.5));
  V e = hn::Exp(d, hn::Mul(square, constant(d, -0.5)));
  e = hn::NegMulAdd(e, rounding, e);
  const V t = hn::Div(one, hn::MulAdd(u, constant(d, 0.3), one));
  V poly = hn::Set(d, kTail[9]);
  for (int i = 8; i >= 0; --i) poly = hn::MulAdd(poly, t, hn::Set(d, kTail[i]));
  const V tail = hn::Mul(e, hn::Mul(t, poly));
  const V integral = hn::IfThenElse(hn::Lt(x, hn::Zero(d)), tail, hn::Sub(one, tail));
  return {hn::Mul(e, constant(d, 0.3989422804014326779)), integral};
}

// gelu's tanh formula is x * sigmoid(2 z) with z = sqrt(2 / pi) * (x + 0.044715 x^3), since
// (1 + tanh(z)) / 2 = sigmoid(2 z); it keeps relative accuracy where 1 + tanh(z) cancels.
template <class V>
struct GeluTanh {
  V gate;   // sigmoid(2 z)
  V slope;  // derivative of 2 z
};

template <class D, class V>
HWY_INLINE GeluTanh<V> gelu_tanh(D d, V x) {
  const V bound = constant(d, 1000);  // the gate is 0 or 1 by then; squares beyond may overflow
  const V c = hn::Max(hn::Min(x, bound), hn::Neg(bound));
  const V cubic = hn::Mul(hn::Mul(c, c), constant(d, 0.044715));
  const V one = constant(d, 1);
  const V scale = constant(d, 1.5957691216057307117);  // 2 sqrt(2 / pi)
  const V gate = vsigmoid(d, hn::Mul(scale, hn::MulAdd(cubic, c, c)));
  return {gate, hn::Mul(scale, hn::MulAdd(cubic, constant(d, 3), one))};
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
