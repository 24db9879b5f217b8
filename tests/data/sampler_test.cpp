#include "cohort/data/sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "cohort/core/error.h"

namespace cohort::data {
namespace {

using testing::ElementsAre;
using Indices = std::vector<std::int64_t>;

TEST(SequentialSampler, GivesAllInOrder) {
  EXPECT_THAT(SequentialSampler(4).indices(), ElementsAre(0, 1, 2, 3));
  EXPECT_TRUE(SequentialSampler(0).indices().empty());
}

TEST(RandomSampler, PermutesDifferentlyInEachEpochAndRepeatably) {
  RandomSampler a(100, 7);
  RandomSampler b(100, 7);
  const Indices first = a.indices();
  EXPECT_EQ(first, b.indices());
  a.set_epoch(1);
  EXPECT_NE(first, a.indices());
  EXPECT_THAT(a.indices(), testing::UnorderedElementsAreArray(SequentialSampler(100).indices()));
  a.set_epoch(0);
  EXPECT_EQ(first, a.indices());
  EXPECT_NE(first, RandomSampler(100, 8).indices());
}

// Size of the dataset, ranks, whether the tail is dropped, whether the order is shuffled.
using Case = std::tuple<std::int64_t, std::int64_t, bool, bool>;

class DistributedSamplerGrid : public testing::TestWithParam<Case> {
 protected:
  // How often each sample comes, over all ranks, in one epoch.
  std::map<std::int64_t, int> counts(std::int64_t epoch) const {
    const auto [size, replicas, drop_last, shuffle] = GetParam();
    std::map<std::int64_t, int> result;
    for (std::int64_t rank = 0; rank < replicas; ++rank) {
      DistributedSampler sampler(size, {.num_replicas = replicas,
                                        .rank = rank,
                                        .shuffle = shuffle,
                                        .seed = 3,
                                        .drop_last = drop_last});
      sampler.set_epoch(epoch);
      const Indices indices = sampler.indices();
      EXPECT_EQ(static_cast<std::int64_t>(indices.size()), sampler.size());
      for (const std::int64_t index : indices) ++result[index];
    }
    return result;
  }
};

TEST_P(DistributedSamplerGrid, RanksTogetherSeeEverySampleOnceUpToTheTail) {
  const auto [size, replicas, drop_last, shuffle] = GetParam();
  const std::map<std::int64_t, int> seen = counts(2);
  std::int64_t total = 0;
  int most = 0;
  for (const auto& [index, count] : seen) {
    EXPECT_TRUE(index >= 0 && index < size);
    total += count;
    most = std::max(most, count);
  }
  if (drop_last) {
    EXPECT_EQ(total, size / replicas * replicas);
    EXPECT_LE(most, 1);
  } else {
    EXPECT_EQ(total, (size + replicas - 1) / replicas * replicas);
    EXPECT_EQ(static_cast<std::int64_t>(seen.size()), size);
    // Padding repeats samples as evenly as can be.
    EXPECT_LE(most, size == 0 ? 0 : (total + size - 1) / size);
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, DistributedSamplerGrid,
                         testing::Combine(testing::Values(0, 1, 7, 16, 101),
                                          testing::Values(1, 2, 3, 8), testing::Bool(),
                                          testing::Bool()));

TEST(DistributedSampler, TakesEveryNthPlaceAndPadsFromTheBeginning) {
  const auto indices = [](std::int64_t rank, bool drop_last) {
    return DistributedSampler(
               5, {.num_replicas = 2, .rank = rank, .shuffle = false, .drop_last = drop_last})
        .indices();
  };
  EXPECT_THAT(indices(0, false), ElementsAre(0, 2, 4));
  EXPECT_THAT(indices(1, false), ElementsAre(1, 3, 0));
  EXPECT_THAT(indices(0, true), ElementsAre(0, 2));
  EXPECT_THAT(indices(1, true), ElementsAre(1, 3));
}

TEST(DistributedSampler, ShufflesBySeedAndEpoch) {
  const auto indices = [](std::uint64_t seed, std::int64_t epoch) {
    DistributedSampler sampler(50, {.num_replicas = 2, .rank = 1, .seed = seed});
    sampler.set_epoch(epoch);
    return sampler.indices();
  };
  EXPECT_EQ(indices(1, 4), indices(1, 4));
  EXPECT_NE(indices(1, 4), indices(1, 5));
  EXPECT_NE(indices(1, 4), indices(2, 3));
}

TEST(DistributedSampler, RefusesImpossibleWorlds) {
  EXPECT_THROW(DistributedSampler(-1, {}), InvalidArgument);
  EXPECT_THROW(DistributedSampler(4, {.num_replicas = 0}), InvalidArgument);
  EXPECT_THROW(DistributedSampler(4, {.num_replicas = 2, .rank = 2}), InvalidArgument);
  EXPECT_THROW(DistributedSampler(4, {.num_replicas = 2, .rank = -1}), InvalidArgument);
}

}  // namespace
}  // namespace cohort::data
