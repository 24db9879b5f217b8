#include "backend/cpu/optim_updates.h"

#include <cmath>
#include <cstring>

#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/optim_updates.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// update(d, g, vectors of the N arrays) changes the vectors, which are then written back. The rest
// at the end goes through a buffer and the same code.
template <int N, typename T, class Update>
HWY_INLINE void update_all(T* const (&arrays)[N], const T* grad, std::size_t count,
                           const Update& update) {
  const hn::ScalableTag<T> d;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  hn::Vec<decltype(d)> values[N];
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int k = 0; k < N; ++k) values[k] = hn::LoadU(d, arrays[k] + i);
    update(d, hn::LoadU(d, grad + i), values);
    for (int k = 0; k < N; ++k) hn::StoreU(values[k], d, arrays[k] + i);
  }
  if (i == count) return;
  const std::size_t bytes = (count - i) * sizeof(T);
  HWY_ALIGN T rest[kLanes] = {};
  for (int k = 0; k < N; ++k) {
    std::memcpy(rest, arrays[k] + i, bytes);
    values[k] = hn::Load(d, rest);
  }
  std::memcpy(rest, grad + i, bytes);
  update(d, hn::Load(d, rest), values);
  for (int k = 0; k < N; ++k) {
    hn::Store(values[k], d, rest);
    std::memcpy(arrays[k] + i, rest, bytes);
  }
}

enum class Momentum { none, first, plain, nesterov };

template <Momentum kind, typename T>
void sgd_loop(const SgdOperands<T>& at, std::size_t count, const SgdParams& params) {
  const auto scale = static_cast<T>(params.maximize ? -params.grad_scale : params.grad_scale);
  const auto decay = static_cast<T>(params.weight_decay);
  const auto momentum = static_cast<T>(params.momentum);
  const auto gain = static_cast<T>(1 - params.dampening);
  const auto rate = static_cast<T>(params.lr);
  // Zero decay must not turn an infinite parameter into a NaN before its time.
  const bool decays = params.weight_decay != 0;
  const bool nesterov = params.nesterov;
  const auto gradient = [=](auto d, auto g, auto p) HWY_ATTR {
    g = hn::Mul(g, hn::Set(d, scale));
    return decays ? hn::MulAdd(hn::Set(d, decay), p, g) : g;
  };
  if constexpr (kind == Momentum::none) {
    T* const arrays[] = {at.param};
    update_all(arrays, at.grad, count, [=](auto d, auto g, auto* values) HWY_ATTR {
      values[0] = hn::NegMulAdd(hn::Set(d, rate), gradient(d, g, values[0]), values[0]);
    });
  } else {
    T* const arrays[] = {at.param, at.buffer};
    update_all(arrays, at.grad, count, [=](auto d, auto g, auto* values) HWY_ATTR {
      g = gradient(d, g, values[0]);
      const auto mu = hn::Set(d, momentum);
      if constexpr (kind == Momentum::first) {
        values[1] = g;
        if (nesterov) g = hn::MulAdd(mu, g, g);
      } else {
        values[1] = hn::MulAdd(mu, values[1], hn::Mul(hn::Set(d, gain), g));
        g = kind == Momentum::nesterov ? hn::MulAdd(mu, values[1], g) : values[1];
      }
      values[0] = hn::NegMulAdd(hn::Set(d, rate), g, values[0]);
    });
  }
}

template <typename T>
HWY_INLINE void sgd(const SgdOperands<T>& at, std::size_t count, const SgdParams& params) {
  if (at.buffer == nullptr) return sgd_loop<Momentum::none>(at, count, params);
  if (params.first_step) return sgd_loop<Momentum::first>(at, count, params);
  if (params.nesterov) return sgd_loop<Momentum::nesterov>(at, count, params);
  sgd_loop<Momentum::plain>(at, count, params);
}

template <bool amsgrad, typename T>
void adam_loop(const AdamOperands<T>& at, std::size_t count, const AdamParams& params) {
  const auto scale = static_cast<T>(params.maximize ? -params.grad_scale : params.grad_scale);
  const bool joins = params.weight_decay != 0 && !params.decoupled;
  const bool shrinks = params.weight_decay != 0 && params.decoupled;
  const auto decay = static_cast<T>(params.weight_decay);
  const auto shrink = static_cast<T>(1 - params.lr * params.weight_decay);
  const auto beta1 = static_cast<T>(params.beta1);
  const auto rest1 = static_cast<T>(1 - params.beta1);
  const auto beta2 = static_cast<T>(params.beta2);
  const auto rest2 = static_cast<T>(1 - params.beta2);
  const auto root = static_cast<T>(std::sqrt(params.bias_correction2));
  const auto eps = static_cast<T>(params.eps);
  const auto rate = static_cast<T>(params.lr / params.bias_correction1);
  const auto update = [=](auto d, auto g, auto* values) HWY_ATTR {
    auto p = values[0];
    g = hn::Mul(g, hn::Set(d, scale));
    if (joins) g = hn::MulAdd(hn::Set(d, decay), p, g);
    if (shrinks) p = hn::Mul(p, hn::Set(d, shrink));
    const auto m = hn::MulAdd(hn::Set(d, beta1), values[1], hn::Mul(hn::Set(d, rest1), g));
    const auto square = hn::Mul(hn::Mul(hn::Set(d, rest2), g), g);
    auto v = hn::MulAdd(hn::Set(d, beta2), values[2], square);
    values[1] = m;
    values[2] = v;
    if constexpr (amsgrad) v = values[3] = hn::Max(values[3], v);
    const auto denominator = hn::Add(hn::Div(hn::Sqrt(v), hn::Set(d, root)), hn::Set(d, eps));
    values[0] = hn::NegMulAdd(hn::Set(d, rate), hn::Div(m, denominator), p);
  };
  if constexpr (amsgrad) {
    T* const arrays[] = {at.param, at.m, at.v, at.max_v};
    update_all(arrays, at.grad, count, update);
  } else {
    T* const arrays[] = {at.param, at.m, at.v};
    update_all(arrays, at.grad, count, update);
  }
}

template <typename T>
HWY_INLINE void adam(const AdamOperands<T>& at, std::size_t count, const AdamParams& params) {
  if (at.max_v != nullptr) {
    adam_loop<true>(at, count, params);
  } else {
    adam_loop<false>(at, count, params);
  }
}

void sgd_f32(const SgdOperands<float>& at, std::size_t count, const SgdParams& params) {
  sgd(at, count, params);
}
void sgd_f64(const SgdOperands<double>& at, std::size_t count, const SgdParams& params) {
  sgd(at, count, params);
}
void adam_f32(const AdamOperands<float>& at, std::size_t count, const AdamParams& params) {
  adam(at, count, params);
}
void adam_f64(const AdamOperands<double>& at, std::size_t count, const AdamParams& params) {
  adam(at, count, params);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(sgd_f32);
HWY_EXPORT(sgd_f64);
HWY_EXPORT(adam_f32);
HWY_EXPORT(adam_f64);

void sgd_update(const SgdOperands<float>& at, std::size_t count, const SgdParams& params) {
  HWY_DYNAMIC_DISPATCH(sgd_f32)(at, count, params);
}
void sgd_update(const SgdOperands<double>& at, std::size_t count, const SgdParams& params) {
  HWY_DYNAMIC_DISPATCH(sgd_f64)(at, count, params);
}
void adam_update(const AdamOperands<float>& at, std::size_t count, const AdamParams& params) {
  HWY_DYNAMIC_DISPATCH(adam_f32)(at, count, params);
}
void adam_update(const AdamOperands<double>& at, std::size_t count, const AdamParams& params) {
  HWY_DYNAMIC_DISPATCH(adam_f64)(at, count, params);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
