// Optimizer state shared out over ranks. Numbers in names are rows of docs/conformance.md.

#include "cohort/parallel/zero_redundancy_optimizer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>

#include "cohort/models/models.h"
#include "cohort/optim/adam.h"
#include "cohort/optim/schedule.h"
#include "cohort/optim/sgd.h"
#include "parallel/ddp_fixture.h"
#include "parallel/training.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort {
namespace {

using optim::Adam;
using optim::AdamOptions;
using optim::ParamGroup;
using optim::SGD;
using optim::SGDOptions;
using test::same_bits;
using test::values;
using Values = std::vector<double>;

Tensor parameter(const Shape& shape, std::uint64_t seed = 1, DType dtype = f32) {
  Tensor tensor = values(shape, f64, seed).detach().to(dtype).clone();
  tensor.set_requires_grad(true);
  return tensor;
}

void set_gradient(Tensor param, std::uint64_t seed) {
  param.set_grad(values(param.shape(), f64, seed).detach().to(param.dtype()));
}

// The same parameters as those of `params`, each in memory of its own.
std::vector<Tensor> twins(const std::vector<Tensor>& params) {
  std::vector<Tensor> result;
  for (const Tensor& param : params) {
    result.push_back(param.detach().clone().set_requires_grad(true));
  }
  return result;
}

// Steps both with equal gradients and expects equal bits of all parameters.
void expect_same_steps(optim::Optimizer& shared, optim::Optimizer& plain, int steps,
                       std::uint64_t seed = 50) {
  const std::vector<Tensor> a = shared.parameters();
  const std::vector<Tensor> b = plain.parameters();
  ASSERT_EQ(a.size(), b.size());
  for (int step = 0; step < steps; ++step) {
    for (std::size_t i = 0; i < a.size(); ++i) {
      const std::uint64_t drawn = seed + 100 * static_cast<std::uint64_t>(step) + i;
      set_gradient(a[i], drawn);
      set_gradient(b[i], drawn);
    }
    shared.step();
    plain.step();
    for (std::size_t i = 0; i < a.size(); ++i) {
      EXPECT_TRUE(same_bits(a[i].detach(), b[i].detach())) << "parameter " << i;
    }
  }
}

class ZeroRanks : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Worlds, ZeroRanks, testing::Values(1, 2, 3, 4));

// Trains a small model under DDP and returns the parameters' hash.
template <typename Make>
std::uint64_t train(const Group& group, int steps, Make&& make) {
  manual_seed(42);
  DDP ddp(models::make_mlp("20-64-64-5"), group);
  auto optimizer = make(ddp.parameters());
  const std::int64_t rows = test::kBatch / group->size();
  for (int step = 0; step < steps; ++step) {
    const test::Batch batch = test::batch_of(step);
    optimizer->zero_grad();
    cross_entropy(ddp(narrow(batch.inputs, 0, group->rank() * rows, rows)),
                  narrow(batch.targets, 0, group->rank() * rows, rows))
        .backward();
    optimizer->step();
  }
  test::Parameters parameters;
  for (const Tensor& tensor : ddp.parameters()) parameters.push_back(tensor.to_vector<float>());
  return test::hash_of(parameters);
}

template <typename Optim, typename Options>
void expect_same_training(int ranks, const Options& options) {
  comm::LocalWorld(ranks).run([&](const Group& group) {
    const std::uint64_t plain = train(group, 3, [&](const std::vector<Tensor>& params) {
      return std::make_unique<Optim>(params, options);
    });
    const std::uint64_t shared = train(group, 3, [&](const std::vector<Tensor>& params) {
      return std::make_unique<ZeroRedundancyOptimizer<Optim>>(params, group, options);
    });
    EXPECT_EQ(shared, plain) << "rank " << group->rank();
  });
}

TEST_P(ZeroRanks, Row83AdamUnderDdpHasTheBitsOfPlainAdam) {
  expect_same_training<Adam>(GetParam(), AdamOptions{.amsgrad = true});
  expect_same_training<optim::AdamW>(GetParam(), optim::AdamWOptions{});
  expect_same_training<SGD>(GetParam(), SGDOptions{.lr = 0.1, .momentum = 0.9});
}

TEST_P(ZeroRanks, DtypesSizesAndEmptyParametersOfAllKindsAreExchanged) {
  comm::LocalWorld(GetParam()).run([&](const Group& group) {
    const std::vector<Tensor> params{parameter({3}, 1),          parameter({0, 4}, 2),
                                     parameter({17, 5}, 3, f64), parameter({33}, 4, bf16),
                                     parameter({1}, 5, f16),     parameter({64, 64}, 6),
                                     parameter({2, 3, 4, 5}, 7)};
    ZeroRedundancyOptimizer<Adam> shared(params, group);
    Adam plain(twins(params));
    expect_same_steps(shared, plain, 3);
  });
}

TEST(Zero, PartsOfSeveralRoundsAndParametersAcrossRounds) {
  // 7 MiB against 4.6 MiB: two rounds of 4 MiB, the second one uneven.
  comm::LocalWorld(2).run([](const Group& group) {
    const std::vector<Tensor> params{parameter({100}, 1), parameter({1835008}, 2),
                                     parameter({1200001}, 3)};
    ZeroRedundancyOptimizer<SGD> shared(params, group, SGDOptions{.lr = 0.5});
    SGD plain(twins(params), {.lr = 0.5});
    group->reset_stats();
    expect_same_steps(shared, plain, 2);
    EXPECT_EQ(group->stats().of(comm::Operation::all_gather).count, 4);
  });
}

TEST(Zero, FewerParametersThanRanks) {
  comm::LocalWorld(4).run([](const Group& group) {
    const std::vector<Tensor> params{parameter({5}, 1), parameter({6}, 2)};
    ZeroRedundancyOptimizer<Adam> shared(params, group);
    Adam plain(twins(params));
    expect_same_steps(shared, plain, 3);
    EXPECT_EQ(shared.planned_state_bytes() == 0, group->rank() >= 2);
  });
}

TEST(Zero, OnlyEmptyParameters) {
  comm::LocalWorld(2).run([](const Group& group) {
    const std::vector<Tensor> params{parameter({0}), parameter({0, 3})};
    ZeroRedundancyOptimizer<Adam> shared(params, group);
    set_gradient(params[0], 1);
    EXPECT_NO_THROW(shared.step());
  });
}

TEST(Zero, LargestParametersFirstToTheRankWithTheLeast) {
  comm::LocalWorld(2).run([](const Group& group) {
    std::vector<Tensor> params;
    for (const std::int64_t size : {16, 160, 32, 96, 48}) params.push_back(parameter({size}));
    const ZeroRedundancyOptimizer<Adam> shared(params, group);
    std::vector<int> owners;
    for (const Tensor& param : params) owners.push_back(shared.owner(param));
    // 160 to 0; 96 and 48 to 1, as 96 < 160 and 144 < 160 allow 32 too; 16 to 0.
    EXPECT_EQ(owners, (std::vector{0, 0, 1, 1, 1}));
    EXPECT_THROW(shared.owner(parameter({1})), InvalidArgument);
  });
}

TEST(Zero, EachRankHoldsItsShareOfTheStateAndOnlyThat) {
  comm::LocalWorld(4).run([](const Group& group) {
    std::vector<Tensor> params;
    for (int i = 0; i < 16; ++i) params.push_back(parameter({1000 + i}));
    const Adam plain(twins(params));
    const auto live = [] {
      return memory_stats().live[static_cast<std::size_t>(MemoryCategory::optimizer)];
    };
    const std::int64_t before = live();
    ZeroRedundancyOptimizer<Adam> shared(params, group);
    for (const Tensor& param : params) set_gradient(param, 1);
    shared.step();
    const auto all = static_cast<double>(plain.planned_state_bytes());
    EXPECT_NEAR(static_cast<double>(shared.planned_state_bytes()) / all, 0.25, 0.01);
    EXPECT_NEAR(static_cast<double>(live() - before) / all, 0.25, 0.02);
    for (const Tensor& param : params) {
      const bool mine = shared.owner(param) == group->rank();
      EXPECT_EQ(shared.state(param).size(), mine ? 2u : 0u);
      EXPECT_EQ(shared.step_count(param), mine ? 1 : 0);
    }
  });
}

TEST(Zero, GroupsRatesSchedulesAndLaterGroupsAreTheOptimizersOwn) {
  comm::LocalWorld(3).run([](const Group& group) {
    const std::vector<Tensor> params{parameter({5}, 1), parameter({7, 3}, 2), parameter({11}, 3),
                                     parameter({40}, 4)};
    const std::vector<Tensor> copies = twins(params);
    const auto groups = [](const std::vector<Tensor>& p) {
      return std::vector<ParamGroup<SGDOptions>>{
          {{p[0], p[1]}}, {{p[2]}, SGDOptions{.lr = 0.5, .weight_decay = 0.1}}};
    };
    ZeroRedundancyOptimizer<SGD> shared(groups(params), group,
                                        SGDOptions{.lr = 0.1, .momentum = 0.9});
    SGD plain(groups(copies), {.lr = 0.1, .momentum = 0.9});
    optim::LRScheduler shared_schedule(shared, optim::StepLR{.step_size = 1, .gamma = 0.5});
    optim::LRScheduler plain_schedule(plain, optim::StepLR{.step_size = 1, .gamma = 0.5});
    expect_same_steps(shared, plain, 1);
    shared_schedule.step();
    plain_schedule.step();
    expect_same_steps(shared, plain, 2);
    EXPECT_EQ(shared.lr(1), 0.25);
    // One rank asks for an owner early, which must not change the partition.
    shared.add_param_group({{params[3]}});
    if (group->rank() == 1) {
      EXPECT_GE(shared.owner(params[3]), 0);
    }
    plain.add_param_group({{copies[3]}});
    expect_same_steps(shared, plain, 2);
    shared.zero_grad();
    EXPECT_FALSE(params[1].grad().defined() || params[3].grad().defined());
  });
}

TEST(Zero, ParametersWithoutAGradientStayAsTheyAre) {
  comm::LocalWorld(2).run([](const Group& group) {
    const std::vector<Tensor> params{parameter({5}, 1), parameter({6}, 2)};
    const std::vector<Tensor> copies = twins(params);
    ZeroRedundancyOptimizer<Adam> shared(params, group);
    set_gradient(params[0], 1);
    shared.step();
    EXPECT_FALSE(same_bits(params[0].detach(), copies[0].detach()));
    EXPECT_TRUE(same_bits(params[1].detach(), copies[1].detach()));
  });
}

TEST(Zero, AnUpdateFromAnotherRankCountsAsAWriteForAutograd) {
  comm::LocalWorld(2).run([](const Group& group) {
    const std::vector<Tensor> params{parameter({5}, 1), parameter({5}, 2)};
    ZeroRedundancyOptimizer<SGD> shared(params, group);
    for (const Tensor& param : params) {
      const Tensor loss = sum(mul(param, param));
      for (const Tensor& each : params) set_gradient(each, 1);
      shared.step();
      EXPECT_THROW(loss.backward(), AutogradError);
    }
  });
}

TEST(Zero, ConsolidatedStateFitsThePlainOptimizerAndAnyNumberOfRanks) {
  const auto make = [] {
    return std::vector<Tensor>{parameter({5}, 1), parameter({7, 3}, 2), parameter({0}, 3),
                               parameter({40}, 4), parameter({2}, 5)};
  };
  const auto run = [](optim::Optimizer& optimizer, int from, int to) {
    for (int step = from; step < to; ++step) {
      const std::vector<Tensor> params = optimizer.parameters();
      for (std::size_t i = 0; i + 1 < params.size(); ++i) {  // the last one is never used
        set_gradient(params[i], static_cast<std::uint64_t>(10 * step) + i + 1);
      }
      optimizer.step();
    }
  };
  const auto floats = [](const std::vector<Tensor>& params) {
    std::vector<std::vector<float>> result;
    for (const Tensor& param : params) result.push_back(param.to_vector<float>());
    return result;
  };
  Adam whole(make(), {.amsgrad = true});
  run(whole, 0, 4);
  const auto want = floats(whole.parameters());

  std::vector<std::vector<float>> halfway;
  std::vector<ParameterState> saved;
  comm::LocalWorld(3).run([&](const Group& group) {
    const std::vector<Tensor> params = make();
    ZeroRedundancyOptimizer<Adam> shared(params, group, AdamOptions{.amsgrad = true});
    run(shared, 0, 2);
    const std::vector<ParameterState> states = shared.consolidated_state(1);
    EXPECT_EQ(states.size(), group->rank() == 1 ? params.size() : 0u);
    EXPECT_THROW(shared.consolidated_state(3), InvalidArgument);
    if (group->rank() != 1) return;
    halfway = floats(params);
    for (const ParameterState& state : states) {
      ParameterState& copy = saved.emplace_back(ParameterState{state.step_count, {}});
      for (const auto& [name, tensor] : state.state) {
        copy.state.push_back({name, Tensor::from(tensor.to_vector<float>(), tensor.shape())});
      }
    }
  });
  ASSERT_EQ(saved.size(), 5u);
  EXPECT_EQ(saved[0].step_count, 2);
  EXPECT_EQ(saved[0].state.size(), 3u);
  EXPECT_EQ(saved[0].state[2].name, "max_exp_avg_sq");
  EXPECT_EQ(saved[4].step_count, 0);
  EXPECT_TRUE(saved[4].state.empty());

  const auto restored = [&] {
    std::vector<Tensor> params;
    const std::vector<Tensor> shapes = make();
    for (std::size_t i = 0; i < shapes.size(); ++i) {
      params.push_back(Tensor::from(halfway[i], shapes[i].shape()).set_requires_grad(true));
    }
    return params;
  };
  const std::vector<Tensor> params = restored();
  Adam plain(params, {.amsgrad = true});
  for (std::size_t i = 0; i < 2; ++i) {
    plain.load_state(params[i], saved[i].step_count, saved[i].state);
  }
  plain.load_state(params[3], saved[3].step_count, saved[3].state);
  run(plain, 2, 4);
  EXPECT_EQ(floats(params), want);
  for (const int ranks : {1, 2, 4}) {
    comm::LocalWorld(ranks).run([&](const Group& group) {
      ZeroRedundancyOptimizer<Adam> shared(restored(), group, AdamOptions{.amsgrad = true});
      shared.load_consolidated_state(saved);
      run(shared, 2, 4);
      EXPECT_EQ(floats(shared.parameters()), want) << "rank " << group->rank() << " of " << ranks;
      EXPECT_THROW(shared.load_consolidated_state({}), InvalidArgument);
    });
  }
}

TEST(Zero, DifferentParametersOrRatesAreAMismatchOnAllRanks) {
  const auto refused = [](const std::function<void(const Group&)>& make) {
    std::atomic<int> raised{0};
    comm::LocalWorld(3).run([&](const Group& group) {
      const std::string message = message_of<MismatchError>([&] { make(group); });
      EXPECT_NE(message.find("[ZeroRedundancyOptimizer] parameters differ"), std::string::npos)
          << message;
      ++raised;
      group->barrier().wait();  // the group goes on
    });
    EXPECT_EQ(raised, 3);
  };
  refused([](const Group& group) {
    ZeroRedundancyOptimizer<Adam>(std::vector{parameter({5 + group->rank() / 2})}, group);
  });
  refused([](const Group& group) {
    std::vector<Tensor> params{parameter({5})};
    if (group->rank() == 1) params.push_back(parameter({5}));
    ZeroRedundancyOptimizer<Adam>(params, group);
  });
  refused([](const Group& group) {
    ZeroRedundancyOptimizer<Adam>(std::vector{parameter({5})}, group,
                                  AdamOptions{.lr = group->rank() == 2 ? 1.0 : 0.1});
  });
  refused([](const Group& group) {
    ZeroRedundancyOptimizer<Adam> shared(std::vector{parameter({5})}, group);
    shared.add_param_group({{parameter({1 + group->rank()})}});
    shared.step();
  });
}

// An optimizer of the user's own, which can be made to fail.
class Fragile : public SGD {
 public:
  using SGD::SGD;
  bool broken = false;

 protected:
  void update(std::size_t group, const Range& range, double grad_scale) override {
    if (broken) throw std::range_error("out of order");
    SGD::update(group, range, grad_scale);
  }
};

TEST(Zero, AnErrorInOneRanksStepIsAnErrorOnAllOfThem) {
  std::atomic<int> peers{0};
  EXPECT_THROW(
      comm::LocalWorld(2, {.timeout = std::chrono::seconds(60)}).run([&](const Group& group) {
        const std::vector<Tensor> params{parameter({4}, 1), parameter({4}, 2)};
        ZeroRedundancyOptimizer<Fragile> shared(params, group);
        Fragile plain(twins(params));
        expect_same_steps(shared, plain, 1);
        shared.broken = group->rank() == 1;
        try {
          shared.step();
        } catch (const PeerError& error) {
          EXPECT_NE(std::string(error.what()).find("out of order"), std::string::npos)
              << error.what();
          ++peers;
        }
      }),
      std::range_error);
  EXPECT_EQ(peers, 1);
}

TEST(Zero, InsideJoinItIsAClearError) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    ZeroRedundancyOptimizer<SGD> shared(ddp.parameters(), group);
    const std::string message = message_of<NotSupported>([&] {
      ddp.join([&] {
        sum(ddp(number(1))).backward();
        shared.step();
      });
    });
    EXPECT_NE(message.find("join() cannot be used with it"), std::string::npos) << message;
    shared.step();
  });
}

TEST(Zero, NeedsAGroup) {
  EXPECT_THROW(ZeroRedundancyOptimizer<SGD>(std::vector{parameter({1})}, nullptr), InvalidArgument);
}

}  // namespace
}  // namespace cohort
