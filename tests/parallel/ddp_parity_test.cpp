// Training under DDP equals training on one rank with the whole batch, and no option changes a bit.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <mutex>

#include "parallel/ddp_fixture.h"
#include "parallel/training.h"
#include "support/child_process.h"

namespace cohort {
namespace {

using test::kSteps;
using test::Parameters;

struct Run {
  int world = 1;
  DDPOptions ddp = {};
  RuntimeOptions runtime = {};
  bool adam = false;
};

// The parameters after kSteps, of rank 0, after all ranks were found bitwise equal.
Parameters train(const Run& run) {
  std::mutex mutex;
  std::map<int, Parameters> by_rank;
  comm::LocalWorld(run.world, {.runtime = run.runtime}).run([&](const Group& group) {
    Parameters mine = test::train_rank(group, run.ddp, run.adam);
    const std::lock_guard lock(mutex);
    by_rank[group->rank()] = std::move(mine);
  });
  for (const auto& [rank, values] : by_rank) {
    EXPECT_EQ(values, by_rank[0]) << "rank " << rank << " differs from rank 0";
  }
  return by_rank[0];
}

double largest_relative_difference(const Parameters& a, const Parameters& b) {
  double worst = 0;
  for (std::size_t p = 0; p < a.size(); ++p) {
    double scale = 0;
    for (const float value : a[p]) scale = std::max(scale, std::abs(static_cast<double>(value)));
    for (std::size_t i = 0; i < a[p].size(); ++i) {
      worst = std::max(worst, std::abs(static_cast<double>(a[p][i]) - b[p][i]) / scale);
    }
  }
  return worst;
}

class DdpParity : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(World, DdpParity, testing::Values(2, 3, 4));

TEST_P(DdpParity, Row91EqualsOneRankWithTheWholeBatchUnderSgd) {
  const Parameters one = train({});
  const Parameters many = train({.world = GetParam()});
  EXPECT_LT(largest_relative_difference(one, many), 1e-6);
}

TEST_P(DdpParity, StaysNearOneRankWithTheWholeBatchUnderAdamW) {
  const Parameters one = train({.adam = true});
  const Parameters many = train({.world = GetParam(), .adam = true});
  // Adam divides by the gradient's size, so tiny differences of tiny gradients are magnified up to
  // the learning rate; 0.05 x lr x steps bounds it.
  for (std::size_t p = 0; p < one.size(); ++p) {
    for (std::size_t i = 0; i < one[p].size(); ++i) {
      EXPECT_NEAR(one[p][i], many[p][i], 0.05 * 1e-3 * kSteps);
    }
  }
}

TEST_P(DdpParity, NoOptionChangesABit) {
  const int world = GetParam();
  const Parameters expected = train({.world = world});
  for (const bool views : {false, true}) {
    for (const double cap : {0.001, 0.1, 1.0, 25.0}) {
      for (const bool overlap : {false, true}) {
        const DDPOptions options{.bucket_cap_mb = cap,
                                 .last_bucket_cap_mb = cap < 0.1 ? 0.0 : 0.01,
                                 .gradient_as_bucket_view = views,
                                 .overlap = overlap};
        EXPECT_EQ(train({.world = world, .ddp = options}), expected)
            << "views " << views << ", cap " << cap << ", overlap " << overlap;
      }
    }
  }
  EXPECT_EQ(train({.world = world, .ddp = {.reverse_registration = false}}), expected);
  EXPECT_EQ(train({.world = world, .ddp = {.rebuild_buckets = false}}), expected);
}

TEST(DdpProcesses, ReachTheSameBitsAsThreads) {
  const Parameters expected = train({.world = 2});
  for (const char* cap : {"0.001", "0.1", "1", "25"}) {
    for (const char* overlap : {"0", "1"}) {
      test::ChildProcess job({COHORT_TEST_BIN "/cohort", "run", "-n", "2",
                              COHORT_TEST_BIN "/ddp_child", "train", cap, overlap});
      ASSERT_EQ(job.wait(std::chrono::seconds(60)), 0) << job.out() << job.err();
      ASSERT_TRUE(job.wait_for_end_of_output(std::chrono::seconds(10)));
      for (const char* rank : {"rank 0", "rank 1"}) {
        EXPECT_NE(job.out().find(str(rank, " hash ", test::hash_of(expected))), std::string::npos)
            << job.out();
      }
    }
  }
}

// The number of seeds: COHORT_TEST_SEEDS, or 5.
int seeds() {
  const char* given = std::getenv("COHORT_TEST_SEEDS");
  return given ? std::atoi(given) : 5;
}

TEST(DdpInterleavings, NoOrderOfTheStreamsChangesABit) {
  const DDPOptions options{.bucket_cap_mb = 0.01, .gradient_as_bucket_view = true};
  const Parameters expected = train({.world = 2, .ddp = options});
  for (int seed = 1; seed <= seeds(); ++seed) {
    const auto s = static_cast<std::uint64_t>(seed);
    EXPECT_EQ(train({.world = 2, .ddp = options, .runtime = {.schedule_seed = s}}), expected)
        << "schedule " << seed;
    EXPECT_EQ(train({.world = 2, .ddp = options, .runtime = {.delay_seed = s}}), expected)
        << "delays " << seed;
  }
}

}  // namespace
}  // namespace cohort
