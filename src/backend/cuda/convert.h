#pragma once

// Conversions between element types, with the results that ElementwiseKernels promises.

#include <cuda_runtime_api.h>

#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <type_traits>

#include "cohort/core/dtype.h"

namespace cohort::backend::cuda {

template <typename T>
inline constexpr bool is_half = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// A float whose rounding to a half format is that of `value`: an inexact result gets its last bit
// set (round to odd), so that the second rounding sees on which side of a tie it lies.
__host__ __device__ inline float round_to_odd(double value) {
  const float near = static_cast<float>(value);
  const double error = value - static_cast<double>(near);
  const auto bits = std::bit_cast<std::uint32_t>(near);
  const bool finite = (bits & 0x7f800000u) != 0x7f800000u;
  if (error == 0 || !finite || (bits & 1u) != 0) return near;
  // Towards the exact value: one up in magnitude when the error has the number's sign.
  return std::bit_cast<float>((error > 0) == (value > 0) ? bits | 1u : bits - 1u);
}

// Truncates; what is out of range becomes the nearest integer, NaN becomes 0.
template <typename To, typename From>
__host__ __device__ inline To saturate(From value) {
  // The bounds as floating numbers: the upper one is max + 1, a power of two, hence exact.
  constexpr From low = static_cast<From>(std::numeric_limits<To>::min());
  constexpr From high = static_cast<From>(std::numeric_limits<To>::max() / 2 + 1) * From{2};
  if (!(value >= low)) return value < low ? std::numeric_limits<To>::min() : To{0};
  return value < high ? static_cast<To>(value) : std::numeric_limits<To>::max();
}

template <typename To, typename From>
__host__ __device__ inline To convert(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, bool>) {
    return value != From{};
  } else if constexpr (is_half<From>) {
    return convert<To>(static_cast<float>(value));
  } else if constexpr (is_half<To>) {
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

// The element of `dtype` at `from` as a T. A bool is read as a byte: any non-zero one is true.
template <typename T>
__host__ __device__ inline T load(const std::byte* from, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return convert<T>(*reinterpret_cast<const double*>(from));
    case DType::bf16:
      return convert<T>(*reinterpret_cast<const BFloat16*>(from));
    case DType::f16:
      return convert<T>(*reinterpret_cast<const Float16*>(from));
    case DType::i32:
      return convert<T>(*reinterpret_cast<const std::int32_t*>(from));
    case DType::i64:
      return convert<T>(*reinterpret_cast<const std::int64_t*>(from));
    case DType::u8:
    case DType::boolean:
      return convert<T>(*reinterpret_cast<const std::uint8_t*>(from));
    case DType::f32:
      break;
  }
  return convert<T>(*reinterpret_cast<const float*>(from));
}

template <typename T>
__host__ __device__ inline void store(std::byte* to, DType dtype, T value) {
  switch (dtype) {
    case DType::f64:
      *reinterpret_cast<double*>(to) = convert<double>(value);
      return;
    case DType::bf16:
      *reinterpret_cast<BFloat16*>(to) = convert<BFloat16>(value);
      return;
    case DType::f16:
      *reinterpret_cast<Float16*>(to) = convert<Float16>(value);
      return;
    case DType::i32:
      *reinterpret_cast<std::int32_t*>(to) = convert<std::int32_t>(value);
      return;
    case DType::i64:
      *reinterpret_cast<std::int64_t*>(to) = convert<std::int64_t>(value);
      return;
    case DType::u8:
      *reinterpret_cast<std::uint8_t*>(to) = convert<std::uint8_t>(value);
      return;
    case DType::boolean:
      *reinterpret_cast<bool*>(to) = convert<bool>(value);
      return;
    case DType::f32:
      break;
  }
  *reinterpret_cast<float*>(to) = convert<float>(value);
}

}  // namespace cohort::backend::cuda
