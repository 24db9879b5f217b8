// FSDP with shards in host memory: the numbers of FSDP without, whatever order the copies' streams
// take. Numbers in names are rows of the FSDP list in docs/conformance.md. COHORT_TEST_SEEDS seeds
// are tried per setting.

#include <gtest/gtest.h>

#include <cstdlib>

#include "cohort/optim/adam.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

struct Training {
  int world = 2;
  FSDPOptions fsdp = {};
  // Backwards that reduce, and before each of them one that does not.
  int reduced = 1;
  bool unreduced = false;
  double max_norm = 0;
  RuntimeOptions runtime = {};
};

State train(const Training& run, bool offload) {
  Collected result;
  comm::LocalWorld(run.world, {.runtime = run.runtime}).run([&](const Group& group) {
    FSDPOptions options = run.fsdp;
    options.zero_copy = false;
    options.cpu_offload.offload_params = offload;
    FSDP fsdp(small_model(), group, options);
    optim::AdamW adam(fsdp.parameters(), {.lr = 1e-2});
    for (int step = 0; step < 3; ++step) {
      adam.zero_grad();
      for (int micro = 0; micro < run.reduced; ++micro) {
        const auto backward = [&](int which) {
          loss_of(fsdp(inputs_of(step, group->rank(), which))).backward();
        };
        if (run.unreduced) {
          const auto guard = fsdp.no_sync();
          backward(2 * micro);
        }
        backward(2 * micro + 1);
      }
      if (run.max_norm > 0) fsdp.clip_grad_norm_(run.max_norm);
      adam.step();
    }
    result.put(group->rank(), values_of(fsdp.full_state()));
  });
  return result.get();
}

void expect_equal(const Training& run) {
  EXPECT_EQ(train(run, true), train(run, false)) << run.fsdp.sharding_strategy;
}

constexpr ShardingStrategy kStrategies[] = {
    ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op, ShardingStrategy::no_shard,
    ShardingStrategy::hybrid_shard, ShardingStrategy::hybrid_shard_zero2};

FSDPOptions wrapped(ShardingStrategy strategy = ShardingStrategy::full_shard) {
  return {.sharding_strategy = strategy, .auto_wrap_policy = linears(), .shard_size = 2};
}

TEST(FsdpOffload, EveryStrategyTrainsAsWithoutIt) {
  for (const int world : {1, 2, 4}) {
    for (const auto strategy : kStrategies) {
      if (world == 1 && (strategy == ShardingStrategy::hybrid_shard ||
                         strategy == ShardingStrategy::hybrid_shard_zero2)) {
        continue;
      }
      expect_equal({.world = world, .fsdp = wrapped(strategy)});
    }
  }
}

TEST(FsdpOffload, OddParts) {
  expect_equal({.world = 3, .fsdp = {}});
}

TEST(FsdpOffload, InLowPrecision) {
  FSDPOptions options = wrapped();
  options.mixed_precision = {.param_dtype = bf16, .reduce_dtype = f32};
  expect_equal({.world = 2, .fsdp = options});
  options.mixed_precision = {.param_dtype = bf16};
  expect_equal({.world = 2, .fsdp = options});
}

TEST(FsdpOffload, Row41AccumulationAddsOutsideNoSyncAndInside) {
  for (const auto strategy : kStrategies) {
    for (const bool unreduced : {false, true}) {
      expect_equal({.world = strategy == ShardingStrategy::full_shard ? 2 : 4,
                    .fsdp = wrapped(strategy),
                    .reduced = 2,
                    .unreduced = unreduced});
    }
  }
}

TEST(FsdpOffload, Row52Clips) {
  expect_equal({.world = 2, .fsdp = wrapped(), .max_norm = 0.05});
}

// Copies, gathers, reductions and computation take turns as each seed says: what reads before it
// has been written, or writes what is still read, shows.
TEST(FsdpOffload, NoOrderOfTheStreamsChangesABit) {
  const char* given = std::getenv("COHORT_TEST_SEEDS");
  const int seeds = given != nullptr ? std::atoi(given) : 5;
  const std::pair<int, ShardingStrategy> settings[] = {{1, ShardingStrategy::full_shard},
                                                       {2, ShardingStrategy::full_shard},
                                                       {4, ShardingStrategy::hybrid_shard},
                                                       {4, ShardingStrategy::no_shard}};
  for (const auto& [world, strategy] : settings) {
    Training run{.world = world, .fsdp = wrapped(strategy), .reduced = 2};
    run.fsdp.forward_prefetch = true;
    const State expected = train(run, false);
    for (int seed = 1; seed <= seeds; ++seed) {
      run.runtime = {.schedule_seed = static_cast<std::uint64_t>(seed)};
      ASSERT_EQ(train(run, true), expected) << strategy << ", seed " << seed;
    }
    run.runtime = {.delay_seed = 5};
    EXPECT_EQ(train(run, true), expected) << strategy << ", delays";
  }
}

TEST(FsdpOffload, TheDeviceHoldsNoParametersAtRestAndTheHostGetsItsMemoryBack) {
  for (const auto strategy : kStrategies) {
    comm::LocalWorld(4).run([&](const Group& group) {
      FSDPOptions options = wrapped(strategy);
      options.cpu_offload.offload_params = true;
      const auto on_device = [](MemoryCategory category) {
        return memory_stats().live[static_cast<std::size_t>(category)];
      };
      {
        FSDP fsdp(small_model(), group, options);
        const FSDPPlan plan = fsdp.plan();
        EXPECT_GT(plan.offloaded_bytes, 0);
        EXPECT_EQ(plan.parameter_bytes, 0);
        EXPECT_EQ(plan.gradient_bytes, 0);
        optim::AdamW adam(fsdp.parameters(), {});
        for (int step = 0; step < 2; ++step) {
          EXPECT_EQ(on_device(MemoryCategory::parameters), 0);
          loss_of(fsdp(inputs_of(step, group->rank(), 0))).backward();
          EXPECT_EQ(on_device(MemoryCategory::parameters), 0);
          EXPECT_EQ(on_device(MemoryCategory::gradients), 0);
          EXPECT_EQ(offloaded_memory_stats().live_total, plan.offloaded_bytes);
          adam.step();
          adam.zero_grad();
          EXPECT_EQ(offloaded_memory_stats().live_total, plan.offloaded_bytes / 2);
        }
      }
      EXPECT_EQ(offloaded_memory_stats().live_total, 0);
    });
  }
}

// The device's rows are free at moments that depend on time: the plan counts all of them.
TEST(FsdpOffload, ThePlanOfAStepHolds) {
  for (const auto strategy : kStrategies) {
    comm::LocalWorld(4).run([&](const Group& group) {
      FSDPOptions options = wrapped(strategy);
      options.cpu_offload.offload_params = true;
      FSDP fsdp(small_model(), group, options);
      fsdp.plan(inputs_of(0, 0, 0));
      loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
      for (const FSDPPlanCheck::Row& row : fsdp.check_plan().rows) {
        if (row.what.find("rise") == row.what.npos && row.what != "peak") {
          EXPECT_EQ(row.measured, row.planned) << row.what;
        } else if (row.what == "rise of gradients" || row.what == "rise of parameters") {
          EXPECT_LE(row.measured, row.planned) << row.what;
        }
      }
    });
  }
}

TEST(FsdpOffload, StatesSummonAndRestore) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDPOptions options = wrapped();
    options.cpu_offload.offload_params = true;
    const auto net = small_model();
    const State before = values_of(net->named_parameters());
    FSDP fsdp(net, group, options);
    EXPECT_EQ(values_of(fsdp.full_state()), before);
    fsdp.summon_full_params([&] {
      EXPECT_EQ(values_of(net->named_parameters()), before);
      const NoGrad no_grad;
      for (Tensor& parameter : net->parameters()) parameter.fill_(2);
    });
    fsdp.load_full_state(fsdp.full_state());
    fsdp.restore();
    for (const auto& [name, values] : values_of(net->named_parameters())) {
      EXPECT_EQ(values, std::vector<double>(before.at(name).size(), 2)) << name;
    }
  });
}

}  // namespace
}  // namespace cohort
