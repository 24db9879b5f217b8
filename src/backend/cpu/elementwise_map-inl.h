// The loop around an element-wise operation, for the instruction set being compiled.

#if defined(COHORT_ELEMENTWISE_MAP_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef COHORT_ELEMENTWISE_MAP_INL
#undef COHORT_ELEMENTWISE_MAP_INL
#else
#define COHORT_ELEMENTWISE_MAP_INL
#endif

#include <cstring>

#include "backend/cpu/elementwise_maps.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The numbers of ScalarParams in every lane.
template <class V>
struct Constants {
  V p;
  V q;
};

template <int N, class F, class D, class V, typename T>
HWY_INLINE V apply_at(D d, const Constants<V>& constants, const T* const* at) {
  if constexpr (N == 1) {
    return F{}(d, constants, hn::LoadU(d, at[0]));
  } else if constexpr (N == 2) {
    return F{}(d, constants, hn::LoadU(d, at[0]), hn::LoadU(d, at[1]));
  } else {
    return F{}(d, constants, hn::LoadU(d, at[0]), hn::LoadU(d, at[1]), hn::LoadU(d, at[2]));
  }
}

// F{}(d, constants, vectors…) on every element. What is left over at the end goes through a
// buffer and the same vector code, so that an element's bits do not depend on where it lies.
template <int N, class F, typename T>
void map(T* out, const Operand<T>* in, std::size_t count, ScalarParams params) {
  const hn::ScalableTag<T> d;
  using V = hn::Vec<decltype(d)>;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  const Constants<V> constants{hn::Set(d, static_cast<T>(params.p)),
                               hn::Set(d, static_cast<T>(params.q))};
  HWY_ALIGN T repeated[N][kLanes];
  const T* at[N];
  std::size_t advance[N];
  for (int k = 0; k < N; ++k) {
    const bool repeats = in[k].step == 0;
    if (repeats) hn::Store(hn::Set(d, *in[k].data), d, repeated[k]);
    at[k] = repeats ? repeated[k] : in[k].data;
    advance[k] = repeats ? 0 : kLanes;
  }
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(apply_at<N, F>(d, constants, at), d, out + i);
    for (int k = 0; k < N; ++k) at[k] += advance[k];
  }
  if (i == count) return;
  HWY_ALIGN T rest[N][kLanes] = {};
  for (int k = 0; k < N; ++k) {
    if (in[k].step == 0) continue;
    std::memcpy(rest[k], at[k], (count - i) * sizeof(T));
    at[k] = rest[k];
  }
  hn::Store(apply_at<N, F>(d, constants, at), d, rest[0]);
  std::memcpy(out + i, rest[0], (count - i) * sizeof(T));
}

// The loop over a captureless lambda of the tag, the constants and N vectors.
template <int N, typename T, class F>
MapFn<T> make_map(F) {
  return map<N, F, T>;
}

// fn(lane) on every lane, for functions that have no vector form.
template <class D, class V, class Fn>
HWY_INLINE V by_lane(D d, V x, Fn fn) {
  HWY_ALIGN hn::TFromD<D> lanes[hn::MaxLanes(D())];
  hn::Store(x, d, lanes);
  for (auto& lane : lanes) lane = fn(lane);
  return hn::Load(d, lanes);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // toggled guard
