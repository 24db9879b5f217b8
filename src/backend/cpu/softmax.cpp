#include <algorithm>
#include <cmath>

#include "backend/cpu/floating.h"
#include "backend/cpu/norm.h"
#include "backend/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/softmax.cpp"
#include "hwy/foreach_target.h"
// The instruction sets come first.
#include "backend/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {
namespace {

template <typename T>
void softmax_row(T* HWY_RESTRICT out, const T* HWY_RESTRICT x, std::int64_t n, bool log) {
  using C = Compute<T>;
  const C top = largest<C>(n, [&](std::int64_t i) { return static_cast<C>(x[i]); });
  const auto shifted = [&](std::int64_t i) { return static_cast<C>(x[i]) - top; };
  if (log) {
    const C log_sum = std::log(sum_exp<C>(n, shifted, [](std::int64_t, C) {}));
    for (std::int64_t i = 0; i < n; ++i) out[i] = static_cast<T>(shifted(i) - log_sum);
  } else if constexpr (std::is_same_v<T, C>) {
    const C total = sum_exp<C>(n, shifted, [&](std::int64_t i, C e) { out[i] = e; });
    const C scale = C{1} / total;
    for (std::int64_t i = 0; i < n; ++i) out[i] *= scale;
  } else {
    // Storing the exponentials would round them: they are computed twice.
    const C scale = C{1} / sum_exp<C>(n, shifted, [](std::int64_t, C) {});
    sum_exp<C>(n, shifted, [&](std::int64_t i, C e) { out[i] = static_cast<T>(e * scale); });
  }
}

// The same down `columns` (at most kLanes) neighbouring columns of rows `ld` apart.
template <typename T>
void softmax_columns(T* HWY_RESTRICT out, const T* HWY_RESTRICT x, std::int64_t n, std::int64_t ld,
                     std::int64_t columns, bool log) {
  using C = Compute<T>;
  HWY_ALIGN C top[kLanes];
  HWY_ALIGN C total[kLanes] = {};
  HWY_ALIGN C chunk[kLanes] = {};
  for (C& lane : top) lane = -std::numeric_limits<C>::infinity();
  const auto each = [&](auto run) {
    for (std::int64_t i = 0; i < n; ++i) {
      for (std::int64_t l = 0; l < columns; ++l) run(i * ld + l, l);
    }
  };
  each([&](std::int64_t i, std::int64_t l) {
    const C v = static_cast<C>(x[i]);
    top[l] = v > top[l] ? v : top[l];
  });
  const auto exponentials = [&](std::int64_t i) {
    for (std::int64_t l = 0; l < columns; ++l) chunk[l] = static_cast<C>(x[i * ld + l]) - top[l];
    exp_lanes(chunk);
  };
  for (std::int64_t i = 0; i < n; ++i) {
    exponentials(i);
    for (std::int64_t l = 0; l < columns; ++l) total[l] += chunk[l];
  }
  if (log) {
    for (std::int64_t l = 0; l < columns; ++l) total[l] = std::log(total[l]);
    each([&](std::int64_t i, std::int64_t l) {
      out[i] = static_cast<T>(static_cast<C>(x[i]) - top[l] - total[l]);
    });
    return;
  }
  for (std::int64_t l = 0; l < columns; ++l) total[l] = C{1} / total[l];
  for (std::int64_t i = 0; i < n; ++i) {
    exponentials(i);
    for (std::int64_t l = 0; l < columns; ++l) {
      out[i * ld + l] = static_cast<T>(chunk[l] * total[l]);
    }
  }
}

// softmax: y (g - sum(g y)); log-softmax: g - exp(y) sum(g).
template <typename T>
void backward_row(T* HWY_RESTRICT to, const T* HWY_RESTRICT g, const T* HWY_RESTRICT y,
                  std::int64_t n, bool log) {
  using C = Compute<T>;
  const auto grad = [&](std::int64_t i) { return static_cast<C>(g[i]); };
  const auto value = [&](std::int64_t i) { return static_cast<C>(y[i]); };
  if (log) {
    const C total = sum<C>(n, grad);
    sum_exp<C>(n, value, [&](std::int64_t i, C e) { to[i] = static_cast<T>(grad(i) - e * total); });
    return;
  }
  const C total = sum<C>(n, [&](std::int64_t i) { return grad(i) * value(i); });
  for (std::int64_t i = 0; i < n; ++i) to[i] = static_cast<T>(value(i) * (grad(i) - total));
}

template <typename T>
void backward_columns(T* HWY_RESTRICT to, const T* HWY_RESTRICT g, const T* HWY_RESTRICT y,
                      std::int64_t n, std::int64_t ld, std::int64_t columns, bool log) {
  using C = Compute<T>;
  HWY_ALIGN C total[kLanes] = {};
  HWY_ALIGN C chunk[kLanes] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t l = 0; l < columns; ++l) {
      const C grad = static_cast<C>(g[i * ld + l]);
      total[l] += log ? grad : grad * static_cast<C>(y[i * ld + l]);
    }
  }
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t l = 0; l < columns; ++l) chunk[l] = static_cast<C>(y[i * ld + l]);
    if (log) exp_lanes(chunk);
    for (std::int64_t l = 0; l < columns; ++l) {
      const C grad = static_cast<C>(g[i * ld + l]);
      to[i * ld + l] =
          static_cast<T>(log ? grad - chunk[l] * total[l] : chunk[l] * (grad - total[l]));
    }
  }
}

// row(offset) for each row where the dimension is the last one, else columns(offset, count).
template <typename Row, typename Columns>
void over_slices(const View& view, Row&& row, Columns&& columns) {
  const std::int64_t n = view.shape[1];
  const std::int64_t inner = view.shape[2];
  for (std::int64_t outer = 0; outer < view.shape[0]; ++outer) {
    const std::int64_t base = outer * n * inner;
    if (inner == 1) {
      row(base);
      continue;
    }
    for (std::int64_t j = 0; j < inner; j += kLanes) columns(base + j, std::min(kLanes, inner - j));
  }
}

void softmax_any(const View& out, const View& in, bool log) {
  dispatch_floating(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* to = out.as<T>();
    const T* from = in.as<const T>();
    const std::int64_t n = in.shape[1];
    over_slices(
        in, [&](std::int64_t at) { softmax_row(to + at, from + at, n, log); },
        [&](std::int64_t at, std::int64_t count) {
          softmax_columns(to + at, from + at, n, in.shape[2], count, log);
        });
  });
}

void softmax_backward_any(const View& grad_in, const View& grad_out, const View& out, bool log) {
  dispatch_floating(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    T* to = grad_in.as<T>();
    const T* g = grad_out.as<const T>();
    const T* y = out.as<const T>();
    const std::int64_t n = out.shape[1];
    over_slices(
        out, [&](std::int64_t at) { backward_row(to + at, g + at, y + at, n, log); },
        [&](std::int64_t at, std::int64_t count) {
          backward_columns(to + at, g + at, y + at, n, out.shape[2], count, log);
        });
  });
}

}  // namespace
}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(softmax_any);
HWY_EXPORT(softmax_backward_any);

void softmax(const View& out, const View& in, bool log) {
  HWY_DYNAMIC_DISPATCH(softmax_any)(out, in, log);
}

void softmax_backward(const View& grad_in, const View& grad_out, const View& out, bool log) {
  HWY_DYNAMIC_DISPATCH(softmax_backward_any)(grad_in, grad_out, out, log);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
