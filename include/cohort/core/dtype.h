#pragma once

#include <cstddef>
#include <cstdint>
#include <iosfwd>
#include <string_view>

#include "cohort/core/half.h"

namespace cohort {

// Element type of a tensor. The numbers are part of the wire protocol and of file formats.
enum class DType : std::uint8_t {
  f32 = 0,
  f64 = 1,
  bf16 = 2,
  f16 = 3,
  i32 = 4,
  i64 = 5,
  u8 = 6,
  boolean = 7,  // one byte, 0 or 1
};

inline constexpr int kDTypeCount = 8;

inline constexpr DType f32 = DType::f32;
inline constexpr DType f64 = DType::f64;
inline constexpr DType bf16 = DType::bf16;
inline constexpr DType f16 = DType::f16;
inline constexpr DType i32 = DType::i32;
inline constexpr DType i64 = DType::i64;
inline constexpr DType u8 = DType::u8;
inline constexpr DType boolean = DType::boolean;

// Bytes of one element.
constexpr std::size_t item_size(DType dtype) {
  switch (dtype) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::bf16:
    case DType::f16:
      return 2;
    case DType::u8:
    case DType::boolean:
      return 1;
  }
  return 0;
}

constexpr bool is_floating(DType dtype) {
  return dtype == DType::f32 || dtype == DType::f64 || dtype == DType::bf16 || dtype == DType::f16;
}

// "f32", "bf16", "bool", …
std::string_view name(DType dtype);
std::ostream& operator<<(std::ostream& out, DType dtype);

// The dtype of a binary operation's result: floating beats integral beats bool; among equals the
// wider wins; bf16 with f16 gives f32. A Python-style scalar never widens a floating tensor.
DType promote(DType a, DType b);

template <typename T>
struct dtype_of_t;
template <>
struct dtype_of_t<float> {
  static constexpr DType value = DType::f32;
};
template <>
struct dtype_of_t<double> {
  static constexpr DType value = DType::f64;
};
template <>
struct dtype_of_t<BFloat16> {
  static constexpr DType value = DType::bf16;
};
template <>
struct dtype_of_t<Float16> {
  static constexpr DType value = DType::f16;
};
template <>
struct dtype_of_t<std::int32_t> {
  static constexpr DType value = DType::i32;
};
template <>
struct dtype_of_t<std::int64_t> {
  static constexpr DType value = DType::i64;
};
template <>
struct dtype_of_t<std::uint8_t> {
  static constexpr DType value = DType::u8;
};
template <>
struct dtype_of_t<bool> {
  static constexpr DType value = DType::boolean;
};

// The DType whose elements are stored as the C++ type T.
template <typename T>
inline constexpr DType dtype_of = dtype_of_t<T>::value;

// Calls fn(T{}) with the C++ type of `dtype`: dispatch(dtype, [&](auto zero) { using T = ...; }).
template <typename F>
decltype(auto) dispatch(DType dtype, F&& fn) {
  switch (dtype) {
    case DType::f64:
      return fn(double{});
    case DType::bf16:
      return fn(BFloat16{});
    case DType::f16:
      return fn(Float16{});
    case DType::i32:
      return fn(std::int32_t{});
    case DType::i64:
      return fn(std::int64_t{});
    case DType::u8:
      return fn(std::uint8_t{});
    case DType::boolean:
      return fn(bool{});
    case DType::f32:
      break;
  }
  return fn(float{});
}

}  // namespace cohort
