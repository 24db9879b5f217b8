// Loops over rows, compiled once per instruction set. A row is taken in chunks of kLanes elements,
// the last one filled up: each element meets the same instructions wherever it stands, and a sum
// has one order (by lane, then the lanes pairwise) that depends on the length alone, not on the
// width of the machine's vectors. The compiler turns the loops over lanes into vectors.

#if defined(COHORT_BACKEND_CPU_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef COHORT_BACKEND_CPU_LANES_INL_H_
#undef COHORT_BACKEND_CPU_LANES_INL_H_
#else
#define COHORT_BACKEND_CPU_LANES_INL_H_
#endif

#include <algorithm>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cohort/core/dtype.h"
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// What values of type T are computed in.
template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Two AVX-512 vectors of floats: additions of one lane wait for each other.
constexpr std::int64_t kLanes = 32;

// run(start, std::integral_constant) for full chunks, run(start, count) for the rest.
template <typename F>
HWY_INLINE void for_chunks(std::int64_t n, F&& run) {
  std::int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) run(i, std::integral_constant<std::int64_t, kLanes>{});
  if (i < n) run(i, n - i);
}

template <typename C>
HWY_INLINE C sum_of_lanes(C* lanes) {
  for (std::int64_t width = kLanes / 2; width > 0; width /= 2) {
    for (std::int64_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  }
  return lanes[0];
}

// Sum of value(i) for i in [0, n).
template <typename C, typename F>
HWY_INLINE C sum(std::int64_t n, F&& value) {
  HWY_ALIGN C lanes[kLanes] = {};
  for_chunks(n, [&](std::int64_t start, auto count) {
    for (std::int64_t l = 0; l < count; ++l) lanes[l] += value(start + l);
  });
  return sum_of_lanes(lanes);
}

// Largest value(i); -infinity for none. NaNs are passed over.
template <typename C, typename F>
HWY_INLINE C largest(std::int64_t n, F&& value) {
  HWY_ALIGN C lanes[kLanes];
  for (C& lane : lanes) lane = -std::numeric_limits<C>::infinity();
  for_chunks(n, [&](std::int64_t start, auto count) {
    for (std::int64_t l = 0; l < count; ++l) {
      const C v = value(start + l);
      lanes[l] = v > lanes[l] ? v : lanes[l];
    }
  });
  C result = lanes[0];
  for (const C lane : lanes) result = lane > result ? lane : result;
  return result;
}

// lanes[l] = exp(lanes[l]) for all kLanes; NaN stays NaN.
template <typename C>
HWY_INLINE void exp_lanes(C* lanes) {
  const hn::ScalableTag<C> d;
  for (std::size_t l = 0; l < kLanes; l += hn::Lanes(d)) {
    const auto v = hn::Load(d, lanes + l);
    hn::Store(hn::IfThenElse(hn::IsNaN(v), v, hn::Exp(d, v)), d, lanes + l);
  }
}

// Calls use(i, exp(value(i))) for i in [0, n), and returns the sum of the exponentials.
template <typename C, typename F, typename Use>
HWY_INLINE C sum_exp(std::int64_t n, F&& value, Use&& use) {
  HWY_ALIGN C lanes[kLanes] = {};
  HWY_ALIGN C chunk[kLanes];
  for_chunks(n, [&](std::int64_t start, auto count) {
    for (std::int64_t l = 0; l < count; ++l) chunk[l] = value(start + l);
    for (std::int64_t l = count; l < kLanes; ++l) chunk[l] = 0;
    exp_lanes(chunk);
    for (std::int64_t l = 0; l < count; ++l) {
      lanes[l] += chunk[l];
      use(start + l, chunk[l]);
    }
  });
  return sum_of_lanes(lanes);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggle
