#include <cmath>

#include "backend/cpu/floating.h"
#include "backend/cpu/index.h"
#include "backend/cpu/vector_targets.h"
#include "cohort/core/error.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/loss.cpp"
#include "hwy/foreach_target.h"
// The instruction sets come first.
#include "backend/cpu/lanes-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {
namespace {

using Reduce = CrossEntropySpec::Reduce;

// Loss of one row: (1 - s)(lse - x[target]) + s (lse - mean(x)), with the row's largest element
// taken off everywhere first. Leaves lse.
template <typename T, typename C>
C row_loss(const T* HWY_RESTRICT x, std::int64_t n, std::int64_t target, C smoothing, C& lse) {
  const C top = largest<C>(n, [&](std::int64_t i) { return static_cast<C>(x[i]); });
  const auto shifted = [&](std::int64_t i) { return static_cast<C>(x[i]) - top; };
  const C log_sum = std::log(sum_exp<C>(n, shifted, [](std::int64_t, C) {}));
  lse = top + log_sum;
  const C hard = log_sum - shifted(target);
  if (smoothing == 0) return hard;
  const C soft = log_sum - sum<C>(n, shifted) / static_cast<C>(n);
  return (C{1} - smoothing) * hard + smoothing * soft;
}

template <typename T>
void cross_entropy_typed(const CrossEntropyArgs& args) {
  using C = Compute<T>;
  const std::int64_t rows = args.logits.shape[0];
  const std::int64_t classes = args.logits.shape[1];
  const T* x = args.logits.as<const T>();
  double total = 0;
  std::int64_t counted = 0;
  for (std::int64_t row = 0; row < rows; ++row) {
    const std::int64_t target = index_at(args.targets, row);
    C loss = 0;
    C lse = 0;
    if (target != args.spec.ignore_index) {
      loss = row_loss<T, C>(x + row * classes, classes, target, static_cast<C>(args.spec.smoothing),
                            lse);
      total += static_cast<double>(loss);
      ++counted;
    }
    args.lse.as<C>()[row] = lse;
    if (args.spec.reduce == Reduce::none) args.out.as<T>()[row] = static_cast<T>(loss);
  }
  *args.count.as<C>() = static_cast<C>(counted);
  if (args.spec.reduce == Reduce::none) return;
  if (args.spec.reduce == Reduce::mean) total /= static_cast<double>(counted);
  *args.out.as<T>() = static_cast<T>(static_cast<C>(total));
}

// g (softmax(x) - (1 - s) onehot(target) - s / classes), zero in ignored rows.
template <typename T>
void cross_entropy_backward_typed(const CrossEntropyArgs& args) {
  using C = Compute<T>;
  const std::int64_t rows = args.logits.shape[0];
  const std::int64_t classes = args.logits.shape[1];
  const C smoothing = static_cast<C>(args.spec.smoothing);
  const C spread = smoothing / static_cast<C>(classes);
  const C divisor = args.spec.reduce == Reduce::mean ? *args.count.as<const C>() : C{1};
  for (std::int64_t row = 0; row < rows; ++row) {
    const T* HWY_RESTRICT x = args.logits.as<const T>() + row * classes;
    T* HWY_RESTRICT to = args.out.as<T>() + row * classes;
    const std::int64_t target = index_at(args.targets, row);
    if (target == args.spec.ignore_index) {
      for (std::int64_t i = 0; i < classes; ++i) to[i] = static_cast<T>(C{0});
      continue;
    }
    const std::int64_t at = args.spec.reduce == Reduce::none ? row : 0;
    const C g = static_cast<C>(args.grad_out.as<const T>()[at]) / divisor;
    const C lse = args.lse.as<const C>()[row];
    C hit = 0;
    sum_exp<C>(
        classes, [&](std::int64_t i) { return static_cast<C>(x[i]) - lse; },
        [&](std::int64_t i, C p) {
          const C value = p - spread;
          if (i == target) hit = value;
          to[i] = static_cast<T>(g * value);
        });
    to[target] = static_cast<T>(g * (hit - (C{1} - smoothing)));
  }
}

void cross_entropy_any(const CrossEntropyArgs& args) {
  dispatch_floating(args.logits.dtype,
                    [&](auto zero) { cross_entropy_typed<decltype(zero)>(args); });
}

void cross_entropy_backward_any(const CrossEntropyArgs& args) {
  dispatch_floating(args.logits.dtype,
                    [&](auto zero) { cross_entropy_backward_typed<decltype(zero)>(args); });
}

}  // namespace
}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(cross_entropy_any);
HWY_EXPORT(cross_entropy_backward_any);

void cross_entropy(const CrossEntropyArgs& args) {
  const std::int64_t classes = args.logits.shape[1];
  for (std::int64_t row = 0; row < args.logits.shape[0]; ++row) {
    const std::int64_t target = index_at(args.targets, row);
    check((target >= 0 && target < classes) || target == args.spec.ignore_index,
          "[cross_entropy] target ", target, " of row ", row, " is neither in [0, ", classes,
          ") nor the ignored index ", args.spec.ignore_index);
  }
  HWY_DYNAMIC_DISPATCH(cross_entropy_any)(args);
}

void cross_entropy_backward(const CrossEntropyArgs& args) {
  HWY_DYNAMIC_DISPATCH(cross_entropy_backward_any)(args);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
