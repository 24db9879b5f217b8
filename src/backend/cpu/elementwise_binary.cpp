#include <cmath>

#include "backend/cpu/elementwise_maps.h"
#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise_binary.cpp"
#include "hwy/foreach_target.h"
//
#include "backend/cpu/elementwise_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

template <typename T>
MapFn<T> binary(BinaryOp op, ScalarParams) {
  switch (op) {
    case BinaryOp::add:
      return make_map<2, T>([](auto, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::Add(x, y); });
    case BinaryOp::sub:
      return make_map<2, T>([](auto, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::Sub(x, y); });
    case BinaryOp::mul:
      return make_map<2, T>([](auto, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::Mul(x, y); });
    case BinaryOp::div:
      return make_map<2, T>([](auto, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::Div(x, y); });
    case BinaryOp::maximum:
      return make_map<2, T>([](auto, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenElse(hn::Gt(x, y), x, y));
      });
    case BinaryOp::minimum:
      return make_map<2, T>([](auto, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElse(hn::IsNaN(x), x, hn::IfThenElse(hn::Lt(x, y), x, y));
      });
    case BinaryOp::add_scaled:
      return make_map<2, T>([](auto, const auto& c, auto x, auto y)
                                HWY_ATTR { return hn::MulAdd(c.p, y, x); });
    case BinaryOp::equal:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElseZero(hn::Eq(x, y), constant(d, 1));
      });
    case BinaryOp::not_equal:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElseZero(hn::Ne(x, y), constant(d, 1));
      });
    case BinaryOp::less:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElseZero(hn::Lt(x, y), constant(d, 1));
      });
    case BinaryOp::less_equal:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElseZero(hn::Le(x, y), constant(d, 1));
      });
    case BinaryOp::greater:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElseZero(hn::Gt(x, y), constant(d, 1));
      });
    case BinaryOp::greater_equal:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y) HWY_ATTR {
        return hn::IfThenElseZero(hn::Ge(x, y), constant(d, 1));
      });
    case BinaryOp::keep_if:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::IfThenElseZero(hn::Ne(y, hn::Zero(d)), x); });
    case BinaryOp::keep_if_not:
      return make_map<2, T>([](auto d, const auto&, auto x, auto y)
                                HWY_ATTR { return hn::IfThenZeroElse(hn::Ne(y, hn::Zero(d)), x); });
    default:
      return nullptr;
  }
}

template <typename T>
MapFn<T> ternary(TernaryOp op) {
  switch (op) {
    case TernaryOp::where:
      return make_map<3, T>([](auto d, const auto&, auto x, auto y, auto z)
                                HWY_ATTR { return hn::IfThenElse(hn::Ne(x, hn::Zero(d)), y, z); });
    case TernaryOp::larger_grad:
      return make_map<3, T>([](auto d, const auto&, auto x, auto y, auto z) HWY_ATTR {
        return hn::IfThenElse(hn::Eq(y, z), hn::Mul(x, constant(d, 0.5)),
                              hn::IfThenElseZero(hn::Gt(y, z), x));
      });
    case TernaryOp::div_grad:
      return make_map<3, T>([](auto, const auto&, auto x, auto y, auto z) HWY_ATTR {
        return hn::Neg(hn::Mul(x, hn::Div(hn::Div(y, z), z)));
      });
  }
  return nullptr;
}

MapFn<float> binary_f32(BinaryOp op, ScalarParams params) {
  return binary<float>(op, params);
}
MapFn<double> binary_f64(BinaryOp op, ScalarParams params) {
  return binary<double>(op, params);
}
MapFn<float> ternary_f32(TernaryOp op) {
  return ternary<float>(op);
}
MapFn<double> ternary_f64(TernaryOp op) {
  return ternary<double>(op);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(binary_f32);
HWY_EXPORT(binary_f64);
HWY_EXPORT(ternary_f32);
HWY_EXPORT(ternary_f64);

MapFn<float> find_binary_f32(BinaryOp op, ScalarParams params) {
  return HWY_DYNAMIC_DISPATCH(binary_f32)(op, params);
}
MapFn<double> find_binary_f64(BinaryOp op, ScalarParams params) {
  return HWY_DYNAMIC_DISPATCH(binary_f64)(op, params);
}
MapFn<float> find_ternary_f32(TernaryOp op) {
  return HWY_DYNAMIC_DISPATCH(ternary_f32)(op);
}
MapFn<double> find_ternary_f64(TernaryOp op) {
  return HWY_DYNAMIC_DISPATCH(ternary_f64)(op);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
