#include "cohort/ops/random.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort {
namespace {

// Vectors that come with the authors' own library (Random123).
TEST(Philox, GivesTheKnownAnswers) {
  constexpr std::uint32_t ones = 0xffffffff;
  EXPECT_EQ(Philox::generate(0, {0, 0, 0, 0}),
            (Philox::Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::generate(~std::uint64_t{0}, {ones, ones, ones, ones}),
            (Philox::Counter{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox::generate(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Philox::Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Random, EveryElementHasItsOwnNumber) {
  for (const std::int64_t count : {1, 3, 4, 255, 256, 257, 1000}) {
    Generator generator(42, 7);
    generator.reserve(10);
    const PhiloxState state = generator.state();
    Tensor x = Tensor::empty({count});
    uniform_(x, 0, 1, generator);
    EXPECT_EQ(generator.state().offset, state.offset + static_cast<std::uint64_t>(count + 3) / 4);
    const auto got = x.to_vector<float>();
    for (std::uint64_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i], uniform_from_bits(state.bits(i))) << i;
    }
  }
}

TEST(Random, CountersCarryIntoTheirUpperHalf) {
  Generator generator(1);
  generator.set_state({1, 0, 0xfffffff0});
  const PhiloxState state = generator.state();
  Tensor x = Tensor::empty({256});
  uniform_(x, 0, 1, generator);
  const auto got = x.to_vector<float>();
  for (std::uint64_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], uniform_from_bits(state.bits(i))) << i;
  }
}

TEST(Random, NormalNumbersAreBoxMullerOfTheirPairs) {
  Generator generator(5);
  const PhiloxState state = generator.state();
  Tensor x = Tensor::empty({331}, {.dtype = f64});
  normal_(x, 2, 3, generator);
  const auto got = x.to_vector<double>();
  for (std::uint64_t i = 0; i < got.size(); ++i) {
    const double u = uniform_from_bits(state.bits(i & ~std::uint64_t{1}));
    const double v = uniform_from_bits(state.bits(i | 1));
    const double r = std::sqrt(-2 * std::log(1 - u));
    const double t = 2 * 3.14159265358979323846 * v;
    EXPECT_NEAR(got[i], 2 + 3 * r * (i % 2 == 0 ? std::cos(t) : std::sin(t)), 1e-13);
  }
}

TEST(Random, NormalNumbersHaveMomentsOfTheNormalDistribution) {
  constexpr int kCount = 200000;
  manual_seed(11);
  const auto x = Tensor::randn({kCount}).to_vector<double>();
  double moments[5] = {};
  for (const double value : x) {
    for (int k = 1; k <= 4; ++k) moments[k] += std::pow(value, k) / kCount;
  }
  // Five standard errors: the variance of x^k is E[x^2k] - E[x^k]^2.
  const double error = 5 / std::sqrt(double{kCount});
  EXPECT_NEAR(moments[1], 0, error);
  EXPECT_NEAR(moments[2], 1, error * std::sqrt(2));
  EXPECT_NEAR(moments[3], 0, error * std::sqrt(15));
  EXPECT_NEAR(moments[4], 3, error * std::sqrt(96));
}

TEST(Random, UniformNumbersStayBelowTheUpperBoundInEveryDtype) {
  for (const DType dtype : {f32, f64, bf16, f16}) {
    for (const double low : {0.0, -3.0, 100.0}) {
      Generator generator(9);
      Tensor x = Tensor::empty({20000}, {.dtype = dtype});
      uniform_(x, low, low + 1, generator);
      const auto got = x.to_vector<double>();
      EXPECT_LT(*std::max_element(got.begin(), got.end()), low + 1) << dtype;
      EXPECT_GE(*std::min_element(got.begin(), got.end()), low) << dtype;
      EXPECT_NEAR(std::accumulate(got.begin(), got.end(), 0.0) / 20000, low + 0.5,
                  dtype == bf16 && low == 100 ? 0.26 : 0.011);
    }
  }
}

TEST(Random, StridedTensorsAreFilledInRowMajorOrder) {
  Tensor base = Tensor::zeros({4, 5});
  Tensor window = base.as_strided({5, 4}, {1, 5}, 0);
  Tensor packed = Tensor::empty({5, 4});
  Generator a(3);
  Generator b(3);
  uniform_(window, -1, 1, a);
  uniform_(packed, -1, 1, b);
  EXPECT_TRUE(test::same_bits(window, packed));
}

TEST(Random, InitialisationIsEqualOnAllRanksAndDropoutIsNot) {
  std::vector<std::vector<float>> initial;
  std::vector<std::vector<float>> drawn;
  for (const int rank : {0, 1, 1}) {
    Context context(Runtime::make({.rank = rank}));
    const ContextScope scope(context);
    manual_seed(5);
    Tensor weight = Tensor::empty({8});
    normal_(weight, 0, 1, context.init_generator);
    initial.push_back(weight.to_vector<float>());
    drawn.push_back(Tensor::rand({8}).to_vector<float>());
  }
  EXPECT_EQ(initial[0], initial[1]);
  EXPECT_NE(drawn[0], drawn[1]);
  EXPECT_EQ(drawn[1], drawn[2]);
}

TEST(Random, PermutationsHoldEveryIndexOnceAndAreUniform) {
  Generator generator(17);
  for (const std::int64_t count : {0, 1, 2, 1000}) {
    auto order = random_permutation(count, generator);
    ASSERT_EQ(static_cast<std::int64_t>(order.size()), count);
    std::sort(order.begin(), order.end());
    for (std::size_t i = 0; i < order.size(); ++i) {
      EXPECT_EQ(order[i], static_cast<std::int64_t>(i));
    }
  }
  // Each of the 6 orders of 3: 1000 expected of 6000, deviation sqrt(833) = 29.
  int counts[3][3] = {};
  for (int i = 0; i < 6000; ++i) {
    const auto order = random_permutation(3, generator);
    ++counts[order[0]][order[1]];
  }
  for (int a = 0; a < 3; ++a) {
    for (int b = 0; b < 3; ++b) EXPECT_NEAR(counts[a][b], a == b ? 0 : 1000, 150);
  }
  Generator one(1);
  Generator two(1);
  EXPECT_EQ(random_permutation(50, one), random_permutation(50, two));
  EXPECT_NE(random_permutation(50, one), random_permutation(49, two));
}

TEST(Random, ArangeCounts) {
  EXPECT_EQ(Tensor::arange(4).to_vector<std::int64_t>(), (std::vector<std::int64_t>{0, 1, 2, 3}));
  const auto big = Tensor::arange(2000, {.dtype = f32}).to_vector<float>();
  EXPECT_EQ(big.back(), 1999);
  EXPECT_EQ(Tensor::arange(0).numel(), 0);
}

TEST(Random, RefusesWhatCannotBeFilled) {
  Generator generator;
  Tensor whole = Tensor::zeros({2}, {.dtype = i64});
  Tensor x = Tensor::zeros({2});
  Tensor leaf = Tensor::zeros({2}, {.requires_grad = true});
  EXPECT_THROW(uniform_(whole, 0, 1, generator), DTypeError);
  EXPECT_THROW(uniform_(x, 1, 0, generator), InvalidArgument);
  EXPECT_THROW(normal_(x, 0, -1, generator), InvalidArgument);
  EXPECT_THROW(normal_(leaf, 0, 1, generator), AutogradError);
  EXPECT_THROW(random_permutation(-1, generator), InvalidArgument);
}

}  // namespace
}  // namespace cohort
