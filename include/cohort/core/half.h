#pragma once

#include <bit>
#include <cstdint>

namespace cohort {

// bfloat16: the upper half of an IEEE float. Conversion rounds to nearest even; NaN stays NaN.
struct BFloat16 {
  std::uint16_t bits = 0;

  BFloat16() = default;
  constexpr BFloat16(float value) : bits(round(value)) {}  // NOLINT(google-explicit-constructor)
  constexpr operator float() const { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

  static constexpr BFloat16 from_bits(std::uint16_t bits) {
    BFloat16 result;
    result.bits = bits;
    return result;
  }

 private:
  static constexpr std::uint16_t round(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((word >> 16) | 0x40u);
    return static_cast<std::uint16_t>((word + 0x7fffu + ((word >> 16) & 1u)) >> 16);
  }
};

// IEEE binary16. Conversion rounds to nearest even; overflow gives infinity; subnormals are kept.
struct Float16 {
  std::uint16_t bits = 0;

  Float16() = default;
  constexpr Float16(float value) : bits(round(value)) {}  // NOLINT(google-explicit-constructor)
  constexpr operator float() const { return widen(bits); }

  static constexpr Float16 from_bits(std::uint16_t bits) {
    Float16 result;
    result.bits = bits;
    return result;
  }

 private:
  static constexpr std::uint16_t round(float value) {
    const auto word = std::bit_cast<std::uint32_t>(value);
    const auto sign = static_cast<std::uint16_t>((word >> 16) & 0x8000u);
    const std::uint32_t magnitude = word & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return sign | 0x7e00u;   // NaN
    if (magnitude >= 0x477ff000u) return sign | 0x7c00u;  // 65520 and above round to infinity
    if (magnitude < 0x38800000u) {
      // Below 2^-14 the result is subnormal: adding 0.5 aligns the mantissa so that the unit of the
      // last place is 2^-24, and the FPU does the rounding.
      const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
      return static_cast<std::uint16_t>(sign |
                                        (std::bit_cast<std::uint32_t>(shifted) - 0x3f000000u));
    }
    const std::uint32_t rebiased = magnitude - 0x38000000u;  // exponent bias 127 -> 15
    return static_cast<std::uint16_t>(sign | ((rebiased + 0xfffu + ((rebiased >> 13) & 1u)) >> 13));
  }

  static constexpr float widen(std::uint16_t bits) {
    const std::uint32_t sign = std::uint32_t{bits & 0x8000u} << 16;
    const std::uint32_t magnitude = bits & 0x7fffu;
    if (magnitude >= 0x7c00u) {  // infinity, NaN
      return std::bit_cast<float>(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13));
    }
    if (magnitude < 0x400u) {  // zero, subnormal: value = mantissa * 2^-24
      const float value = static_cast<float>(magnitude) * 0x1p-24f;
      return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(value));
    }
    return std::bit_cast<float>(sign | ((magnitude << 13) + 0x38000000u));
  }
};

}  // namespace cohort
