#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/floating.h"
#include "backend/cpu/norm.h"
#include "backend/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/batch_norm.cpp"
#include "hwy/foreach_target.h"
// The instruction sets come first.
#include "backend/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {
namespace {

// x [samples, channels, space]: a channel's values are runs of `space` elements, or, where space is
// 1, columns.
struct Extent {
  explicit Extent(const View& x) : samples(x.shape[0]), channels(x.shape[1]), space(x.shape[2]) {}
  std::int64_t samples, channels, space;
  double count() const { return static_cast<double>(samples * space); }
};

// Per channel, the sum of value(index, channel) over its elements, across runs in f64: a batch has
// more elements than f32 has digits for.
template <typename C, typename F>
std::vector<double> channel_sums(const Extent& e, F&& value) {
  std::vector<double> sums(static_cast<std::size_t>(e.channels));
  double* HWY_RESTRICT to = sums.data();
  for (std::int64_t n = 0; n < e.samples; ++n) {
    const std::int64_t base = n * e.channels * e.space;
    if (e.space == 1) {
      for (std::int64_t c = 0; c < e.channels; ++c) {
        to[c] += static_cast<double>(value(base + c, c));
      }
      continue;
    }
    for (std::int64_t c = 0; c < e.channels; ++c) {
      const std::int64_t run = base + c * e.space;
      to[c] +=
          static_cast<double>(sum<C>(e.space, [&](std::int64_t i) { return value(run + i, c); }));
    }
  }
  return sums;
}

// to[i] = value(i, channel) for every element.
template <typename T, typename C, typename F>
void map_channels(const Extent& e, T* HWY_RESTRICT to, F&& value) {
  for (std::int64_t n = 0; n < e.samples; ++n) {
    const std::int64_t base = n * e.channels * e.space;
    if (e.space == 1) {
      for (std::int64_t c = 0; c < e.channels; ++c) {
        to[base + c] = static_cast<T>(value(base + c, c));
      }
      continue;
    }
    for (std::int64_t c = 0; c < e.channels; ++c) {
      const std::int64_t run = base + c * e.space;
      for (std::int64_t i = 0; i < e.space; ++i) to[run + i] = static_cast<T>(value(run + i, c));
    }
  }
}

template <typename S>
void move_running(const View& running, std::int64_t c, double momentum, double value) {
  if (running.data == nullptr) return;
  S& to = running.as<S>()[c];
  to = static_cast<S>((1 - momentum) * static_cast<double>(to) + momentum * value);
}

double at(const View& view, std::int64_t i, double otherwise) {
  if (view.data == nullptr) return otherwise;
  double result = 0;
  dispatch_floating(view.dtype, [&](auto zero) {
    result = static_cast<double>(view.as<const decltype(zero)>()[i]);
  });
  return result;
}

// Fills mean and rstd, from x or from the running statistics.
template <typename T, typename C>
void statistics(const BatchNormArgs& args, const Extent& e) {
  const T* x = args.x.as<const T>();
  C* mean = args.mean.as<C>();
  C* rstd = args.rstd.as<C>();
  if (!args.batch_stats) {
    for (std::int64_t c = 0; c < e.channels; ++c) {
      mean[c] = static_cast<C>(at(args.running.mean, c, 0));
      rstd[c] = static_cast<C>(1 / std::sqrt(at(args.running.var, c, 1) + args.eps));
    }
    return;
  }
  const auto totals =
      channel_sums<C>(e, [&](std::int64_t i, std::int64_t) { return static_cast<C>(x[i]); });
  for (std::int64_t c = 0; c < e.channels; ++c) {
    mean[c] = static_cast<C>(totals[static_cast<std::size_t>(c)] / e.count());
  }
  const auto squares = channel_sums<C>(e, [&](std::int64_t i, std::int64_t c) {
    const C d = static_cast<C>(x[i]) - mean[c];
    return d * d;
  });
  for (std::int64_t c = 0; c < e.channels; ++c) {
    const double total = squares[static_cast<std::size_t>(c)];
    rstd[c] = static_cast<C>(1 / std::sqrt(total / e.count() + args.eps));
    const double unbiased = total / (e.count() - 1);
    dispatch_floating(args.running.mean.dtype, [&](auto zero) {
      using S = decltype(zero);
      move_running<S>(args.running.mean, c, args.running.momentum, static_cast<double>(mean[c]));
      move_running<S>(args.running.var, c, args.running.momentum, unbiased);
    });
  }
}

template <typename T>
void batch_norm_typed(const BatchNormArgs& args) {
  using C = Compute<T>;
  const Extent e(args.x);
  if (args.x.numel == 0) return;
  statistics<T, C>(args, e);
  const auto channels = static_cast<std::size_t>(e.channels);
  std::vector<C> scales(channels);
  std::vector<C> shifts(channels);
  for (std::int64_t c = 0; c < e.channels; ++c) {
    const auto i = static_cast<std::size_t>(c);
    scales[i] = static_cast<C>(at(args.weight, c, 1)) * args.rstd.as<const C>()[c];
    shifts[i] = static_cast<C>(at(args.bias, c, 0));
  }
  const T* x = args.x.as<const T>();
  const C* mean = args.mean.as<const C>();
  const C* scale = scales.data();
  const C* shift = shifts.data();
  map_channels<T, C>(e, args.out.as<T>(), [=](std::int64_t i, std::int64_t c) {
    return (static_cast<C>(x[i]) - mean[c]) * scale[c] + shift[c];
  });
}

template <typename T, typename C>
void write_parameter(const GradView& grad, const std::vector<double>& sums, const C* factor) {
  if (!grad.wanted) return;
  T* to = grad.view.as<T>();
  for (std::size_t c = 0; c < sums.size(); ++c) {
    const double value = factor == nullptr ? sums[c] : sums[c] * static_cast<double>(factor[c]);
    const double old = grad.accumulate ? static_cast<double>(static_cast<C>(to[c])) : 0;
    to[c] = static_cast<T>(static_cast<C>(old + value));
  }
}

// With d = x - mean: training gives dx = w rstd (g - mean(g) - d rstd^2 mean(g d)), for constant
// statistics dx = w rstd g; dw = rstd sum(g d), db = sum(g).
template <typename T>
void batch_norm_backward_typed(const NormBackwardArgs& args) {
  using C = Compute<T>;
  const Extent e(args.x);
  const T* x = args.x.as<const T>();
  const T* g = args.grad_out.as<const T>();
  const C* mean = args.mean.as<const C>();
  const C* rstd = args.rstd.as<const C>();
  const auto sums =
      channel_sums<C>(e, [&](std::int64_t i, std::int64_t) { return static_cast<C>(g[i]); });
  const auto products = channel_sums<C>(e, [&](std::int64_t i, std::int64_t c) {
    return static_cast<C>(g[i]) * (static_cast<C>(x[i]) - mean[c]);
  });
  write_parameter<T, C>(args.grad_weight, products, rstd);
  write_parameter<T, C>(args.grad_bias, sums, nullptr);
  if (args.grad_x.data == nullptr) return;
  const auto channels = static_cast<std::size_t>(e.channels);
  std::vector<C> scales(channels);
  std::vector<C> means(channels);
  std::vector<C> slopes(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const double r = static_cast<double>(rstd[c]);
    scales[c] = static_cast<C>(at(args.weight, static_cast<std::int64_t>(c), 1) * r);
    if (!args.batch_stats) continue;
    means[c] = static_cast<C>(sums[c] / e.count());
    slopes[c] = static_cast<C>(products[c] / e.count() * r * r);
  }
  const C* scale = scales.data();
  const C* center = means.data();
  const C* slope = slopes.data();
  map_channels<T, C>(e, args.grad_x.as<T>(), [=](std::int64_t i, std::int64_t c) {
    const C d = static_cast<C>(x[i]) - mean[c];
    return scale[c] * (static_cast<C>(g[i]) - center[c] - d * slope[c]);
  });
}

void batch_norm_any(const BatchNormArgs& args) {
  dispatch_floating(args.x.dtype, [&](auto zero) { batch_norm_typed<decltype(zero)>(args); });
}

void batch_norm_backward_any(const NormBackwardArgs& args) {
  dispatch_floating(args.x.dtype,
                    [&](auto zero) { batch_norm_backward_typed<decltype(zero)>(args); });
}

}  // namespace
}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(batch_norm_any);
HWY_EXPORT(batch_norm_backward_any);

void batch_norm(const BatchNormArgs& args) {
  HWY_DYNAMIC_DISPATCH(batch_norm_any)(args);
}

void batch_norm_backward(const NormBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(batch_norm_backward_any)(args);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
