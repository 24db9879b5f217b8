#include "parallel/flat_layout.h"

#include <gtest/gtest.h>

namespace cohort::parallel {
namespace {

class FlatLayoutOverRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, FlatLayoutOverRanks, testing::Values(1, 2, 3, 4, 8));

// Linear(5, 5) and Linear(5, 7), with and without bias.
TEST_P(FlatLayoutOverRanks, Row6TheRanksRangesPutTogetherAreTheParameters) {
  const int ranks = GetParam();
  for (const auto& numels : {std::vector<std::int64_t>{25, 5, 35, 7}, {25, 35}, {}, {0, 1, 0}}) {
    const FlatLayout layout(numels, 16, ranks);
    EXPECT_EQ(layout.total(), layout.shard() * ranks);
    EXPECT_EQ(layout.shard() % 16, 0);
    std::int64_t end = 0;
    for (std::size_t p = 0; p < numels.size(); ++p) {
      EXPECT_EQ(layout.offset(p) % 16, 0);
      EXPECT_GE(layout.offset(p), end);
      EXPECT_LT(layout.offset(p) - end, 16);
      end = layout.offset(p) + numels[p];
      std::int64_t covered = 0;
      for (int rank = 0; rank < ranks; ++rank) {
        const FlatLayout::Range range = layout.local(p, rank);
        EXPECT_EQ(range.begin, covered) << "in rank order, without gaps";
        covered = range.end;
        const std::int64_t first = layout.offset(p) + range.begin;
        if (range.size() > 0) {
          EXPECT_GE(first, layout.shard() * rank);
          EXPECT_LE(first + range.size(), layout.shard() * (rank + 1));
        }
      }
      EXPECT_EQ(covered, numels[p]) << "every element once";
    }
    EXPECT_LE(end, layout.total());
  }
}

TEST(FlatLayout, OfTwoRanksByNumbers) {
  const FlatLayout layout(std::vector<std::int64_t>{25, 5, 35, 7}, 16, 2);
  EXPECT_EQ(layout.offset(0), 0);
  EXPECT_EQ(layout.offset(1), 32);
  EXPECT_EQ(layout.offset(2), 48);
  EXPECT_EQ(layout.offset(3), 96);
  EXPECT_EQ(layout.total(), 128);
  EXPECT_EQ(layout.local(2, 0), (FlatLayout::Range{0, 16}));
  EXPECT_EQ(layout.local(2, 1), (FlatLayout::Range{16, 35}));
  EXPECT_EQ(layout.local(0, 1).size(), 0);
}

// A shape such as (9,) on 8 ranks.
TEST(FlatLayout, Row5WastesLessThanOneStepPerRank) {
  const FlatLayout layout(std::vector<std::int64_t>{9}, 16, 8);
  EXPECT_LT(layout.total() - 9, 16 * 8);
}

}  // namespace
}  // namespace cohort::parallel
