#include "backend/cpu/gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cohort/core/error.h"
#include "support/values.h"

namespace cohort::backend::cpu {
namespace {

template <typename T>
std::vector<T> numbers(std::int64_t count, std::uint64_t seed) {
  const auto wide = test::values({count}, f64, seed).to_vector<double>();
  return std::vector<T>(wide.begin(), wide.end());
}

struct Sizes {
  std::int64_t m, n, k;
};

// Around the edges of tiles (12 or 6 rows, 8 to 32 columns), panels (256 deep) and blocks (240).
const Sizes kSizes[] = {{1, 1, 1},   {1, 7, 3},     {13, 33, 5},   {12, 32, 256}, {25, 31, 257},
                        {5, 300, 2}, {241, 17, 20}, {64, 64, 600}, {3, 1, 1000},  {250, 2, 1}};

// Every layout of the operands, with rows further apart than needed, compared with three loops.
template <typename T, typename Multiply>
void expect_products(Multiply&& multiply, double tolerance) {
  for (const Sizes& s : kSizes) {
    for (int variant = 0; variant < 8; ++variant) {
      Gemm g;
      g.m = s.m;
      g.n = s.n;
      g.k = s.k;
      g.transpose_a = (variant & 1) != 0;
      g.transpose_b = (variant & 2) != 0;
      g.accumulate = (variant & 4) != 0;
      g.lda = (g.transpose_a ? s.m : s.k) + 1;
      g.ldb = (g.transpose_b ? s.k : s.n) + 2;
      g.ldc = s.n + 3;
      const auto a = numbers<T>((g.transpose_a ? s.k : s.m) * g.lda, 1);
      const auto b = numbers<T>((g.transpose_b ? s.n : s.k) * g.ldb, 2);
      auto c = numbers<T>(s.m * g.ldc, 3);
      const auto before = c;
      if (!g.accumulate) {
        for (std::int64_t i = 0; i < s.m * g.ldc; ++i) {
          if (i % g.ldc < s.n) c[static_cast<std::size_t>(i)] = std::numeric_limits<T>::quiet_NaN();
        }
      }
      multiply(g, a.data(), b.data(), c.data());
      for (std::int64_t i = 0; i < s.m; ++i) {
        for (std::int64_t j = 0; j < g.ldc; ++j) {
          const auto at = static_cast<std::size_t>(i * g.ldc + j);
          if (j >= s.n) {
            ASSERT_EQ(c[at], before[at]) << "wrote beside the matrix";
            continue;
          }
          double sum = g.accumulate ? static_cast<double>(before[at]) : 0;
          for (std::int64_t p = 0; p < s.k; ++p) {
            const auto x = g.transpose_a ? p * g.lda + i : i * g.lda + p;
            const auto y = g.transpose_b ? j * g.ldb + p : p * g.ldb + j;
            sum += static_cast<double>(a[static_cast<std::size_t>(x)]) *
                   static_cast<double>(b[static_cast<std::size_t>(y)]);
          }
          ASSERT_NEAR(static_cast<double>(c[at]), sum, tolerance * (1 + std::sqrt(s.k)))
              << s.m << " x " << s.n << " x " << s.k << " variant " << variant << " at " << i
              << ", " << j;
        }
      }
    }
  }
}

TEST(Gemm, MultipliesEveryLayoutInF32) {
  expect_products<float>([](auto&&... args) { gemm(args...); }, 1e-6);
}

TEST(Gemm, MultipliesEveryLayoutInF64) {
  expect_products<double>([](auto&&... args) { gemm(args...); }, 1e-15);
}

// Large enough for every path of the library.
TEST(Gemm, AddsABiasToEveryRow) {
  for (const Sizes& s : {Sizes{1, 3, 2}, Sizes{5, 70, 33}, Sizes{6, 1030, 1025}}) {
    for (const bool transposed : {false, true}) {
      Gemm g;
      g.m = s.m;
      g.n = s.n;
      g.k = s.k;
      g.transpose_b = transposed;
      g.lda = s.k;
      g.ldb = transposed ? s.k : s.n;
      g.ldc = s.n;
      const auto a = numbers<float>(s.m * s.k, 1);
      const auto b = numbers<float>(s.n * s.k, 2);
      const auto bias = numbers<float>(s.n, 3);
      std::vector<float> plain(static_cast<std::size_t>(s.m * s.n));
      std::vector<float> biased(plain.size(), std::numeric_limits<float>::quiet_NaN());
      gemm_blocked(g, a.data(), b.data(), plain.data());
      gemm(g, a.data(), b.data(), biased.data(), bias.data());
      for (std::size_t i = 0; i < plain.size(); ++i) {
        ASSERT_NEAR(biased[i], plain[i] + bias[i % static_cast<std::size_t>(s.n)], 1e-4) << i;
      }
    }
  }
}

TEST(Gemm, TheBlockedKernelMultipliesEveryLayoutInF32) {
  expect_products<float>([](auto&&... args) { gemm_blocked(args...); }, 1e-6);
}

TEST(Gemm, TheBlockedKernelsElementsDoNotDependOnWhereTheyLie) {
  // Column 40 of 41 lies in a tile over the edge; alone it is column 0.
  const std::int64_t m = 30;
  const std::int64_t n = 41;
  const std::int64_t k = 300;
  const auto a = numbers<float>(m * k, 1);
  const auto b = numbers<float>(k * n, 2);
  Gemm g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.lda = k;
  g.ldb = g.ldc = n;
  std::vector<float> all(static_cast<std::size_t>(m * n));
  gemm_blocked(g, a.data(), b.data(), all.data());
  for (const std::int64_t column : {0, 17, 40}) {
    for (const std::int64_t row : {0, 13, 29}) {
      Gemm one = g;
      one.m = one.n = 1;
      float alone = 0;
      gemm_blocked(one, a.data() + row * k, b.data() + column, &alone);
      EXPECT_EQ(alone, all[static_cast<std::size_t>(row * n + column)]) << row << ", " << column;
    }
  }
}

}  // namespace
}  // namespace cohort::backend::cpu
