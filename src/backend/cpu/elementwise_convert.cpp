#include "backend/cpu/elementwise_convert.h"

#include <bit>
#include <cstring>
#include <limits>
#include <type_traits>

#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/elementwise_convert.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// Plain loops: the compiler vectorises them for each target, and a conversion has one right result.
HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

// A float whose rounding to half of its precision is that of `value`: inexact results get their
// last bit set (round to odd), so that the second rounding sees on which side of a tie they lie.
HWY_INLINE float round_to_odd(double value) {
  const float near = static_cast<float>(value);
  const double error = value - static_cast<double>(near);
  const auto bits = std::bit_cast<std::uint32_t>(near);
  const bool even = (bits & 1u) == 0;
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  // Towards the exact value: one up in magnitude when the error has the number's sign.
  const bool away = (error > 0) == (value > 0);
  const std::uint32_t odd = away ? bits | 1u : bits - 1u;
  return std::bit_cast<float>(error != 0 && even && finite ? odd : bits);
}

template <typename To, typename From>
HWY_INLINE To saturate(From value) {
  // The bounds as floating numbers: the upper one is max + 1, a power of two, hence exact.
  constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
  constexpr To half = std::numeric_limits<To>::max() / 2 + 1;
  constexpr From high = static_cast<From>(half) * From{2};
  if (!(value >= low)) return value < low ? std::numeric_limits<To>::min() : To{0};
  return value < high ? static_cast<To>(value) : std::numeric_limits<To>::max();
}

template <typename To, typename From>
HWY_INLINE To convert(From value) {
  if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (std::is_same_v<From, BFloat16> || std::is_same_v<From, Float16>) {
    return static_cast<To>(static_cast<float>(value));
  } else if constexpr (std::is_same_v<To, BFloat16> || std::is_same_v<To, Float16>) {
    if constexpr (std::is_same_v<From, float>) {
      return To(value);
    } else {
      return To(round_to_odd(static_cast<double>(value)));
    }
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    return saturate<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

// A bool is read as a byte: any non-zero one is true, and bytes vectorise.
template <typename From>
using Stored = std::conditional_t<std::is_same_v<From, bool>, std::uint8_t, From>;

template <typename To>
HWY_INLINE void load_as(To* HWY_RESTRICT to, const void* from, DType dtype, std::size_t count) {
  dispatch(dtype, [&](auto zero) HWY_ATTR {
    using From = Stored<decltype(zero)>;
    const From* HWY_RESTRICT source = static_cast<const From*>(from);
    for (std::size_t i = 0; i < count; ++i) to[i] = convert<To>(source[i]);
  });
}

template <typename From>
HWY_INLINE void store_as(void* to, DType dtype, const From* HWY_RESTRICT from, std::size_t count) {
  dispatch(dtype, [&](auto zero) HWY_ATTR {
    using To = decltype(zero);
    To* HWY_RESTRICT target = static_cast<To*>(to);
    for (std::size_t i = 0; i < count; ++i) target[i] = convert<To>(from[i]);
  });
}

void load_float(float* to, const void* from, DType dtype, std::size_t count) {
  load_as(to, from, dtype, count);
}
void load_double(double* to, const void* from, DType dtype, std::size_t count) {
  load_as(to, from, dtype, count);
}
void load_int(std::int64_t* to, const void* from, DType dtype, std::size_t count) {
  load_as(to, from, dtype, count);
}
void store_float(void* to, DType dtype, const float* from, std::size_t count) {
  store_as(to, dtype, from, count);
}
void store_double(void* to, DType dtype, const double* from, std::size_t count) {
  store_as(to, dtype, from, count);
}
void store_int(void* to, DType dtype, const std::int64_t* from, std::size_t count) {
  store_as(to, dtype, from, count);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(load_float);
HWY_EXPORT(load_double);
HWY_EXPORT(load_int);
HWY_EXPORT(store_float);
HWY_EXPORT(store_double);
HWY_EXPORT(store_int);

void load(float* to, const void* from, DType dtype, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(load_float)(to, from, dtype, count);
}
void load(double* to, const void* from, DType dtype, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(load_double)(to, from, dtype, count);
}
void load(std::int64_t* to, const void* from, DType dtype, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(load_int)(to, from, dtype, count);
}
void store(void* to, DType dtype, const float* from, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(store_float)(to, dtype, from, count);
}
void store(void* to, DType dtype, const double* from, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(store_double)(to, dtype, from, count);
}
void store(void* to, DType dtype, const std::int64_t* from, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(store_int)(to, dtype, from, count);
}

namespace {

template <typename F>
void with_word(std::size_t item, F&& fn) {
  switch (item) {
    case 1:
      return fn(std::uint8_t{});
    case 2:
      return fn(std::uint16_t{});
    case 4:
      return fn(std::uint32_t{});
    default:
      return fn(std::uint64_t{});
  }
}

}  // namespace

void gather(void* to, const void* from, std::int64_t step, std::size_t item, std::size_t count) {
  if (step == 1) {
    std::memcpy(to, from, count * item);
    return;
  }
  with_word(item, [&](auto word) {
    using Word = decltype(word);
    const Word* source = static_cast<const Word*>(from);
    Word* target = static_cast<Word*>(to);
    for (std::size_t i = 0; i < count; ++i, source += step) target[i] = *source;
  });
}

void scatter(void* to, std::int64_t step, const void* from, std::size_t item, std::size_t count) {
  if (step == 1) {
    std::memcpy(to, from, count * item);
    return;
  }
  with_word(item, [&](auto word) {
    using Word = decltype(word);
    const Word* source = static_cast<const Word*>(from);
    Word* target = static_cast<Word*>(to);
    for (std::size_t i = 0; i < count; ++i, target += step) *target = source[i];
  });
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
