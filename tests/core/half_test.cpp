#include "cohort/core/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace cohort {
namespace {

TEST(Float16, EveryBitPatternSurvivesARoundTrip) {
  for (std::uint32_t bits = 0; bits < 0x10000; ++bits) {
    const Float16 value = Float16::from_bits(static_cast<std::uint16_t>(bits));
    const float wide = value;
    if (std::isnan(wide)) {
      EXPECT_TRUE(std::isnan(static_cast<float>(Float16(wide)))) << bits;
    } else {
      EXPECT_EQ(Float16(wide).bits, bits);
    }
  }
}

TEST(Float16, WidensToTheValueOfItsFields) {
  for (std::uint32_t bits = 0; bits < 0x7c00; ++bits) {
    const std::uint32_t exponent = bits >> 10;
    const std::uint32_t mantissa = bits & 0x3ff;
    const double expected = exponent == 0
                                ? std::ldexp(mantissa, -24)
                                : std::ldexp(1024.0 + mantissa, static_cast<int>(exponent) - 25);
    EXPECT_EQ(static_cast<double>(
                  static_cast<float>(Float16::from_bits(static_cast<std::uint16_t>(bits)))),
              expected);
  }
}

// Between two neighbours, the middle goes to the even one, and a hair above or below to the nearer.
template <typename Half>
void expect_nearest_even(std::uint16_t low) {
  const auto high = static_cast<std::uint16_t>(low + 1);
  const float a = Half::from_bits(low);
  const float b = Half::from_bits(high);
  const float middle = static_cast<float>((static_cast<double>(a) + b) / 2);
  EXPECT_EQ(Half(middle).bits, low % 2 == 0 ? low : high) << low;
  EXPECT_EQ(Half(std::nextafter(middle, a)).bits, low);
  EXPECT_EQ(Half(std::nextafter(middle, b)).bits, high);
}

TEST(Float16, RoundsToNearestEven) {
  for (std::uint32_t bits = 0; bits + 1 < 0x7c00; ++bits) {
    expect_nearest_even<Float16>(static_cast<std::uint16_t>(bits));
  }
}

TEST(BFloat16, RoundsToNearestEven) {
  for (std::uint32_t bits = 0x80; bits + 1 < 0x7f80; ++bits) {
    expect_nearest_even<BFloat16>(static_cast<std::uint16_t>(bits));
  }
}

TEST(Float16, OverflowGivesInfinityAndTheLargestValueStays) {
  EXPECT_EQ(static_cast<float>(Float16(65504.0f)), 65504.0f);
  EXPECT_EQ(static_cast<float>(Float16(65519.99f)), 65504.0f);
  EXPECT_TRUE(std::isinf(static_cast<float>(Float16(65520.0f))));
  EXPECT_EQ(Float16(-1e30f).bits, 0xfc00);
}

TEST(BFloat16, KeepsNanAndInfinity) {
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::nanf("")))));
  // A NaN whose payload lies in the dropped bits only must not become infinity.
  EXPECT_TRUE(std::isnan(static_cast<float>(BFloat16(std::bit_cast<float>(0x7f800001u)))));
  EXPECT_EQ(BFloat16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
}

}  // namespace
}  // namespace cohort
