#include "backend/cpu/reduce_add.h"

#include <cstring>

#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/reduce_add.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kPartials = 64;

template <typename T>
T add_up_in(const T* from, std::size_t count) {
  const hn::ScalableTag<T> d;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<T>());
  constexpr std::size_t kVectors = kPartials / kLanes;
  hn::Vec<decltype(d)> sums[kVectors];
  for (auto& sum : sums) sum = hn::Zero(d);
  std::size_t i = 0;
  for (; i + kPartials <= count; i += kPartials) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], hn::LoadU(d, from + i + v * kLanes));
    }
  }
  HWY_ALIGN T partials[kPartials] = {};
  if (i < count) {
    std::memcpy(partials, from + i, (count - i) * sizeof(T));
    for (std::size_t v = 0; v < kVectors; ++v) {
      sums[v] = hn::Add(sums[v], hn::Load(d, partials + v * kLanes));
    }
  }
  for (std::size_t half = kVectors / 2; half > 0; half /= 2) {
    for (std::size_t v = 0; v < half; ++v) sums[v] = hn::Add(sums[v], sums[v + half]);
  }
  hn::Store(sums[0], d, partials);
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) partials[j] += partials[j + half];
  }
  return partials[0];
}

// Plain loops: the compiler vectorises them, and the order of additions is that of the rows anyway.
template <typename T>
void add_rows_in(T* HWY_RESTRICT to, const T* const* rows, int row_count, std::size_t count) {
  if (row_count == 4) {
    const T* HWY_RESTRICT r0 = rows[0];
    const T* HWY_RESTRICT r1 = rows[1];
    const T* HWY_RESTRICT r2 = rows[2];
    const T* HWY_RESTRICT r3 = rows[3];
    for (std::size_t i = 0; i < count; ++i) to[i] = (((to[i] + r0[i]) + r1[i]) + r2[i]) + r3[i];
    return;
  }
  for (int r = 0; r < row_count; ++r) {
    const T* HWY_RESTRICT row = rows[r];
    for (std::size_t i = 0; i < count; ++i) to[i] += row[i];
  }
}

float add_up_f32(const float* from, std::size_t count) {
  return add_up_in(from, count);
}
double add_up_f64(const double* from, std::size_t count) {
  return add_up_in(from, count);
}
void add_rows_f32(float* to, const float* const* rows, int row_count, std::size_t count) {
  add_rows_in(to, rows, row_count, count);
}
void add_rows_f64(double* to, const double* const* rows, int row_count, std::size_t count) {
  add_rows_in(to, rows, row_count, count);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(add_up_f32);
HWY_EXPORT(add_up_f64);
HWY_EXPORT(add_rows_f32);
HWY_EXPORT(add_rows_f64);

float add_up(const float* from, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(add_up_f32)(from, count);
}
double add_up(const double* from, std::size_t count) {
  return HWY_DYNAMIC_DISPATCH(add_up_f64)(from, count);
}
void add_rows(float* to, const float* const* rows, int row_count, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add_rows_f32)(to, rows, row_count, count);
}
void add_rows(double* to, const double* const* rows, int row_count, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(add_rows_f64)(to, rows, row_count, count);
}

// Integers wrap around: any order gives the same, and unsigned words may overflow.
std::int64_t add_up(const std::int64_t* from, std::size_t count) {
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < count; ++i) sum += static_cast<std::uint64_t>(from[i]);
  return static_cast<std::int64_t>(sum);
}
void add_rows(std::int64_t* to, const std::int64_t* const* rows, int row_count, std::size_t count) {
  for (int r = 0; r < row_count; ++r) {
    for (std::size_t i = 0; i < count; ++i) {
      to[i] = static_cast<std::int64_t>(static_cast<std::uint64_t>(to[i]) +
                                        static_cast<std::uint64_t>(rows[r][i]));
    }
  }
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
