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
  statistics<T, C>(args, e);
  if (args.x.numel == 0) return;
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

// count, means, sums of squared deviations.
template <typename T>
void moments_typed(const View& moments, const View& view) {
  using C = Compute<T>;
  const Extent e(view);
  const auto channels = static_cast<std::size_t>(e.channels);
  double* to = moments.as<double>();
  std::fill_n(to, 1 + 2 * channels, 0.0);
  if (view.numel == 0) return;
  to[0] = e.count();
  const T* x = view.as<const T>();
  const auto totals =
      channel_sums<C>(e, [&](std::int64_t i, std::int64_t) { return static_cast<C>(x[i]); });
  std::vector<C> centers(channels);
  for (std::size_t c = 0; c < channels; ++c) centers[c] = static_cast<C>(totals[c] / e.count());
  const auto squares = channel_sums<C>(e, [&](std::int64_t i, std::int64_t c) {
    const C d = static_cast<C>(x[i]) - centers[static_cast<std::size_t>(c)];
    return d * d;
  });
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = totals[c] / e.count();
    // The center was rounded: what that adds to the squares.
    const double shift = mean - static_cast<double>(centers[c]);
    to[1 + c] = mean;
    to[1 + channels + c] = std::max(0.0, squares[c] - e.count() * shift * shift);
  }
}

template <typename T, typename C>
void write_parameter(const GradView& grad, std::size_t channels, const double* sums,
                     const C* factor) {
  if (!grad.wanted) return;
  T* to = grad.view.as<T>();
  for (std::size_t c = 0; c < channels; ++c) {
    const double value = factor == nullptr ? sums[c] : sums[c] * static_cast<double>(factor[c]);
    const double old = grad.accumulate ? static_cast<double>(static_cast<C>(to[c])) : 0;
    to[c] = static_cast<T>(static_cast<C>(old + value));
  }
}

// With d = x - mean: training gives dx = w rstd (g - mean(g) - d rstd^2 mean(g d)), for constant
// statistics dx = w rstd g; dw = rstd sum(g d), db = sum(g).
//
// The sums of g, then those of g d, per channel; and from them dw and db.
template <typename T>
void backward_sums_typed(double* to, const NormBackwardArgs& args) {
  using C = Compute<T>;
  const Extent e(args.x);
  const T* x = args.x.as<const T>();
  const T* g = args.grad_out.as<const T>();
  const C* mean = args.mean.as<const C>();
  const auto sums =
      channel_sums<C>(e, [&](std::int64_t i, std::int64_t) { return static_cast<C>(g[i]); });
  const auto products = channel_sums<C>(e, [&](std::int64_t i, std::int64_t c) {
    return static_cast<C>(g[i]) * (static_cast<C>(x[i]) - mean[c]);
  });
  const std::size_t channels = sums.size();
  std::copy(sums.begin(), sums.end(), to);
  std::copy(products.begin(), products.end(), to + channels);
  write_parameter<T, C>(args.grad_weight, channels, products.data(), args.rstd.as<const C>());
  write_parameter<T, C>(args.grad_bias, channels, sums.data(), static_cast<const C*>(nullptr));
}

// dx, given the sums over all `count` values of a channel.
template <typename T>
void backward_input_typed(const double* sums, double count, const NormBackwardArgs& args) {
  using C = Compute<T>;
  const Extent e(args.x);
  if (args.x.numel == 0) return;
  const T* x = args.x.as<const T>();
  const T* g = args.grad_out.as<const T>();
  const C* mean = args.mean.as<const C>();
  const auto channels = static_cast<std::size_t>(e.channels);
  std::vector<C> scales(channels);
  std::vector<C> means(channels);
  std::vector<C> slopes(channels);
  for (std::size_t c = 0; c < channels; ++c) {
    const double r = static_cast<double>(args.rstd.as<const C>()[c]);
    scales[c] = static_cast<C>(at(args.weight, static_cast<std::int64_t>(c), 1) * r);
    if (!args.batch_stats) continue;
    means[c] = static_cast<C>(sums[c] / count);
    slopes[c] = static_cast<C>(sums[channels + c] / count * r * r);
  }
  const C* scale = scales.data();
  const C* center = means.data();
  const C* slope = slopes.data();
  map_channels<T, C>(e, args.grad_x.as<T>(), [=](std::int64_t i, std::int64_t c) {
    const C d = static_cast<C>(x[i]) - mean[c];
    return scale[c] * (static_cast<C>(g[i]) - center[c] - d * slope[c]);
  });
}

template <typename T>
void batch_norm_backward_typed(const NormBackwardArgs& args) {
  const Extent e(args.x);
  std::vector<double> sums(2 * static_cast<std::size_t>(e.channels));
  backward_sums_typed<T>(sums.data(), args);
  if (args.grad_x.data != nullptr) backward_input_typed<T>(sums.data(), e.count(), args);
}

void batch_norm_any(const BatchNormArgs& args) {
  dispatch_floating(args.x.dtype, [&](auto zero) { batch_norm_typed<decltype(zero)>(args); });
}

void batch_norm_backward_any(const NormBackwardArgs& args) {
  dispatch_floating(args.x.dtype,
                    [&](auto zero) { batch_norm_backward_typed<decltype(zero)>(args); });
}

void batch_norm_moments_any(const View& moments, const View& x) {
  dispatch_floating(x.dtype, [&](auto zero) { moments_typed<decltype(zero)>(moments, x); });
}

void batch_norm_backward_sums_any(const View& sums, const NormBackwardArgs& args) {
  dispatch_floating(args.x.dtype, [&](auto zero) {
    backward_sums_typed<decltype(zero)>(sums.as<double>(), args);
  });
}

void batch_norm_backward_input_any(const View& sums, double count, const NormBackwardArgs& args) {
  dispatch_floating(args.x.dtype, [&](auto zero) {
    backward_input_typed<decltype(zero)>(sums.as<const double>(), count, args);
  });
}

}  // namespace
}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(batch_norm_any);
HWY_EXPORT(batch_norm_backward_any);
HWY_EXPORT(batch_norm_moments_any);
HWY_EXPORT(batch_norm_backward_sums_any);
HWY_EXPORT(batch_norm_backward_input_any);

void batch_norm(const BatchNormArgs& args) {
  HWY_DYNAMIC_DISPATCH(batch_norm_any)(args);
}

void batch_norm_backward(const NormBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(batch_norm_backward_any)(args);
}

void batch_norm_moments(const View& moments, const View& x) {
  HWY_DYNAMIC_DISPATCH(batch_norm_moments_any)(moments, x);
}

void batch_norm_backward_sums(const View& sums, const NormBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(batch_norm_backward_sums_any)(sums, args);
}

void batch_norm_backward_input(const View& sums, double count, const NormBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(batch_norm_backward_input_any)(sums, count, args);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
