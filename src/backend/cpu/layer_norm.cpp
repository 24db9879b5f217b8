#include <algorithm>
#include <cmath>
#include <vector>

#include "backend/cpu/floating.h"
#include "backend/cpu/norm.h"
#include "backend/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/layer_norm.cpp"
#include "hwy/foreach_target.h"
// The instruction sets come first.
#include "backend/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void layer_norm_rows(const View& out, const View& mean, const View& rstd, const View& x,
                     const View& weight, const View& bias, double eps) {
  using C = Compute<T>;
  const std::int64_t width = x.shape[1];
  const T* w = weight.as<const T>();
  const T* b = bias.as<const T>();
  for (std::int64_t row = 0; row < x.shape[0]; ++row) {
    const T* HWY_RESTRICT from = x.as<const T>() + row * width;
    T* HWY_RESTRICT to = out.as<T>() + row * width;
    const C count = static_cast<C>(width);
    const C center = sum<C>(width, [&](std::int64_t i) { return static_cast<C>(from[i]); }) / count;
    const C variance = sum<C>(width,
                              [&](std::int64_t i) {
                                const C d = static_cast<C>(from[i]) - center;
                                return d * d;
                              }) /
                       count;
    const C scale = C{1} / std::sqrt(variance + static_cast<C>(eps));
    mean.as<C>()[row] = center;
    rstd.as<C>()[row] = scale;
    const auto normal = [&](std::int64_t i) { return (static_cast<C>(from[i]) - center) * scale; };
    if (w == nullptr && b == nullptr) {
      for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(normal(i));
    } else if (b == nullptr) {
      for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(normal(i) * w[i]);
    } else if (w == nullptr) {
      for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(normal(i) + b[i]);
    } else {
      for (std::int64_t i = 0; i < width; ++i) to[i] = static_cast<T>(normal(i) * w[i] + b[i]);
    }
  }
}

// Sums over rows of the parameters' gradients: in blocks of rows, then the blocks, as column_sum.
template <typename C>
struct ParameterSums {
  static constexpr std::int64_t kBlock = 64;
  explicit ParameterSums(std::int64_t width)
      : block(static_cast<std::size_t>(width)), total(static_cast<std::size_t>(width)) {}

  void close_block() {
    for (std::size_t i = 0; i < total.size(); ++i) {
      total[i] += block[i];
      block[i] = 0;
    }
  }
  template <typename T>
  void write(const GradView& grad) const {
    T* to = grad.view.as<T>();
    for (std::size_t i = 0; i < total.size(); ++i) {
      to[i] = static_cast<T>(grad.accumulate ? static_cast<C>(to[i]) + total[i] : total[i]);
    }
  }

  std::vector<C> block, total;
};

template <typename T>
void layer_norm_backward_rows(const NormBackwardArgs& args) {
  using C = Compute<T>;
  const std::int64_t rows = args.x.shape[0];
  const std::int64_t width = args.x.shape[1];
  const T* w = args.weight.as<const T>();
  ParameterSums<C> weights(args.grad_weight.wanted ? width : 0);
  ParameterSums<C> biases(args.grad_bias.wanted ? width : 0);
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* HWY_RESTRICT x = args.x.as<const T>() + row * width;
    const T* HWY_RESTRICT g = args.grad_out.as<const T>() + row * width;
    const C center = args.mean.as<const C>()[row];
    const C scale = args.rstd.as<const C>()[row];
    const auto normal = [&](std::int64_t i) { return (static_cast<C>(x[i]) - center) * scale; };
    const auto inner = [&](std::int64_t i) {
      const C grad = static_cast<C>(g[i]);
      return w == nullptr ? grad : grad * static_cast<C>(w[i]);
    };
    if (args.grad_weight.wanted) {
      C* HWY_RESTRICT block = weights.block.data();
      for (std::int64_t i = 0; i < width; ++i) block[i] += static_cast<C>(g[i]) * normal(i);
    }
    if (args.grad_bias.wanted) {
      C* HWY_RESTRICT block = biases.block.data();
      for (std::int64_t i = 0; i < width; ++i) block[i] += static_cast<C>(g[i]);
    }
    if ((row + 1) % ParameterSums<C>::kBlock == 0 || row + 1 == rows) {
      weights.close_block();
      biases.close_block();
    }
    if (args.grad_x.data == nullptr) continue;
    const C count = static_cast<C>(width);
    const C mean_grad = sum<C>(width, inner) / count;
    const C mean_product =
        sum<C>(width, [&](std::int64_t i) { return inner(i) * normal(i); }) / count;
    T* HWY_RESTRICT to = args.grad_x.as<T>() + row * width;
    for (std::int64_t i = 0; i < width; ++i) {
      to[i] = static_cast<T>(scale * (inner(i) - mean_grad - normal(i) * mean_product));
    }
  }
  if (args.grad_weight.wanted) weights.template write<T>(args.grad_weight);
  if (args.grad_bias.wanted) biases.template write<T>(args.grad_bias);
}

void layer_norm_any(const View& out, const View& mean, const View& rstd, const View& x,
                    const View& weight, const View& bias, double eps) {
  dispatch_floating(x.dtype, [&](auto zero) {
    layer_norm_rows<decltype(zero)>(out, mean, rstd, x, weight, bias, eps);
  });
}

void layer_norm_backward_any(const NormBackwardArgs& args) {
  dispatch_floating(args.x.dtype,
                    [&](auto zero) { layer_norm_backward_rows<decltype(zero)>(args); });
}

}  // namespace
}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(layer_norm_any);
HWY_EXPORT(layer_norm_backward_any);

void layer_norm(const View& out, const View& mean, const View& rstd, const View& x,
                const View& weight, const View& bias, double eps) {
  HWY_DYNAMIC_DISPATCH(layer_norm_any)(out, mean, rstd, x, weight, bias, eps);
}

void layer_norm_backward(const NormBackwardArgs& args) {
  HWY_DYNAMIC_DISPATCH(layer_norm_backward_any)(args);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
