#include "backend/cpu/column_sum.h"

#include <gtest/gtest.h>

#include <vector>

#include "support/values.h"

namespace cohort::backend::cpu {
namespace {

// Around the edges of blocks (64 rows) and chunks (128 columns).
TEST(ColumnSum, SumsRowsInEveryShape) {
  for (const std::int64_t rows : {0, 1, 63, 64, 65, 200}) {
    for (const std::int64_t columns : {0, 1, 7, 128, 131}) {
      const std::int64_t ld = columns + 3;
      const auto a = test::values({rows * ld}, f32).to_vector<float>();
      std::vector<float> out(static_cast<std::size_t>(columns), 5);
      column_sum(f32, a.data(), rows, columns, ld, out.data(), false);
      std::vector<float> more(static_cast<std::size_t>(columns), 5);
      column_sum(f32, a.data(), rows, columns, ld, more.data(), true);
      for (std::int64_t j = 0; j < columns; ++j) {
        double sum = 0;
        for (std::int64_t i = 0; i < rows; ++i) {
          sum += static_cast<double>(a[static_cast<std::size_t>(i * ld + j)]);
        }
        ASSERT_NEAR(out[static_cast<std::size_t>(j)], sum, 1e-5) << rows << " rows, column " << j;
        ASSERT_NEAR(more[static_cast<std::size_t>(j)], 5 + sum, 1e-5) << rows << ", column " << j;
      }
    }
  }
}

TEST(ColumnSum, AColumnsBitsDoNotDependOnWhereItLies) {
  const auto a = test::values({100 * 131}, f32).to_vector<float>();
  std::vector<float> all(131);
  column_sum(f32, a.data(), 100, 131, 131, all.data(), false);
  for (const std::size_t column : {std::size_t{0}, std::size_t{77}, std::size_t{130}}) {
    float alone = 0;
    column_sum(f32, a.data() + column, 100, 1, 131, &alone, false);
    EXPECT_EQ(alone, all[column]);
  }
}

TEST(ColumnSum, HalfPrecisionIsSummedInF32) {
  const std::vector<BFloat16> a(300, BFloat16(1.0f));
  BFloat16 out(7.0f);
  column_sum(bf16, a.data(), 300, 1, 1, &out, true);
  EXPECT_EQ(static_cast<float>(out), 308.0f) << "307 rounded once";
}

}  // namespace
}  // namespace cohort::backend::cpu
