// Training under DDP equals training on one rank with the whole batch, and no option changes a bit.

#include <gtest/gtest.h>

#include <map>

#include "cohort/models/models.h"
#include "cohort/nn/conv.h"
#include "cohort/nn/norm.h"
#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

constexpr int kSteps = 20;
constexpr std::int64_t kBatch = 12;  // divides by 1, 2, 3 and 4

// A step's whole batch; the same on all ranks.
struct Batch {
  Tensor inputs;
  Tensor targets;
};

Batch batch_of(int step) {
  Generator generator(1000 + static_cast<std::uint64_t>(step));
  Tensor inputs = Tensor::empty({kBatch, 20});
  normal_(inputs, 0, 1, generator);
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < kBatch; ++i) targets.push_back((i * 7 + step) % 5);
  return {inputs, Tensor::from(targets, {kBatch})};
}

using Parameters = std::vector<std::vector<float>>;

Parameters values_of(const std::vector<Tensor>& tensors) {
  Parameters values;
  for (const Tensor& tensor : tensors) values.push_back(tensor.to_vector<float>());
  return values;
}

struct Run {
  int world = 1;
  DDPOptions ddp = {};
  RuntimeOptions runtime = {};
  bool adam = false;
};

// The parameters after kSteps, of rank 0, after all ranks were found bitwise equal.
Parameters train(const Run& run) {
  Parameters result;
  std::mutex mutex;
  std::map<int, Parameters> by_rank;
  comm::LocalWorld(run.world, {.runtime = run.runtime}).run([&](const Group& group) {
    manual_seed(42);
    DDP ddp(models::make_mlp("20-64-64-5"), group, run.ddp);
    std::unique_ptr<optim::Optimizer> optimizer;
    if (run.adam) {
      optimizer = std::make_unique<optim::AdamW>(ddp.parameters(), optim::AdamWOptions{.lr = 1e-3});
    } else {
      optimizer = std::make_unique<optim::SGD>(ddp.parameters(),
                                               optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
    }
    const std::int64_t share = kBatch / run.world;
    for (int step = 0; step < kSteps; ++step) {
      const Batch batch = batch_of(step);
      const Tensor x = narrow(batch.inputs, 0, group->rank() * share, share);
      const Tensor y = narrow(batch.targets, 0, group->rank() * share, share);
      optimizer->zero_grad();
      cross_entropy(ddp(x), y).backward();
      optimizer->step();
    }
    Parameters mine = values_of(ddp.parameters());
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

TEST_P(DdpParity, EqualsOneRankWithTheWholeBatchUnderSgd) {
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
