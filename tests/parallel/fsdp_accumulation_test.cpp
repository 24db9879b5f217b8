// When units gather and drop, and accumulation over micro-batches. Numbers in names are rows of the
// FSDP list in docs/conformance.md.

#include <gtest/gtest.h>

#include <optional>

#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

using comm::Operation;

TEST(FsdpUnits, Row12ReshardingByHandGathersAllUnitsAgain) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group,
              {.sharding_strategy = ShardingStrategy::shard_grad_op,
               .auto_wrap_policy = linears(),
               .zero_copy = false});
    std::vector<std::vector<float>> gradients;
    for (const bool by_hand : {false, true}) {
      fsdp.module().zero_grad();
      const Tensor loss = loss_of(fsdp(inputs_of(0, group->rank(), 0)));
      if (by_hand) fsdp.reshard();
      group->reset_stats();
      loss.backward();
      EXPECT_EQ(gathers(*group), by_hand ? 4 : 0);
      gradients.push_back(fsdp.parameters()[0].grad().to_vector<float>());
    }
    EXPECT_EQ(gradients[0], gradients[1]);
  });
}

TEST(FsdpUnits, Row13ReshardingAfterForwardIsSetForOneUnitOrAllInsideIt) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(models::make_mlp("12-8-8-8-8-5"), group,
              {.auto_wrap_policy = linears(), .zero_copy = false});
    const auto in_backward = [&] {
      fsdp.module().zero_grad();
      const Tensor loss = loss_of(fsdp(inputs_of(0, group->rank(), 0)));
      group->reset_stats();
      loss.backward();
      return gathers(*group);
    };
    EXPECT_EQ(in_backward(), 3) << "of five units two are still there";
    fsdp.set_reshard_after_forward(false, "9", /*recurse=*/false);
    EXPECT_EQ(in_backward(), 2) << "it keeps its own, and two of the others are still there";
    fsdp.set_reshard_after_forward(false, "1");
    EXPECT_EQ(in_backward(), 1);
    EXPECT_EQ(fsdp.plan().count(Operation::all_gather), 5 + 1);
    fsdp.set_reshard_after_forward(false);
    EXPECT_EQ(in_backward(), 0);
    fsdp.set_reshard_after_forward(true);
    EXPECT_EQ(in_backward(), 3);
    EXPECT_THROW(fsdp.set_reshard_after_forward(true, "33"), InvalidArgument);
  });
}

TEST(FsdpAccumulation, Row14AccumulationReducesOnceAndGathersForEachMicroBatch) {
  for (const bool keeps : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      const auto strategy = keeps ? ShardingStrategy::shard_grad_op : ShardingStrategy::full_shard;
      FSDP fsdp(small_model(), group,
                {.sharding_strategy = strategy, .auto_wrap_policy = linears(), .zero_copy = false});
      group->reset_stats();
      for (int micro = 0; micro < 3; ++micro) {
        std::optional<decltype(fsdp)::NoSync> guard;
        if (micro < 2) guard.emplace(fsdp.no_sync());
        loss_of(fsdp(inputs_of(0, group->rank(), micro))).backward();
      }
      EXPECT_EQ(group->stats().of(Operation::reduce_scatter).count, 4);
      EXPECT_EQ(gathers(*group), 3 * (keeps ? 4 : 4 + 2)) << "two units are still there";
    });
  }
}

TEST(FsdpAccumulation, Row40AccumulationWithAndWithoutCommunicationGivesTheSameSums) {
  for (FSDPOptions options : kinds(linears())) {
    for (const bool local_first : {true, false}) {
      comm::LocalWorld(2).run([&](const Group& group) {
        FSDP fsdp(small_model(), group, options);
        FSDP plain(small_model(), group, options);
        for (int micro = 0; micro < 6; ++micro) {
          // Three of each, in one order or the other; the last one has to reduce.
          const bool local = micro < 5 && (micro < 3) == local_first;
          std::optional<decltype(fsdp)::NoSync> guard;
          if (local) guard.emplace(fsdp.no_sync());
          loss_of(fsdp(inputs_of(0, group->rank(), micro))).backward();
          guard.reset();
          loss_of(plain(inputs_of(0, group->rank(), micro))).backward();
        }
        const auto got = fsdp.parameters();
        const auto expected = plain.parameters();
        for (std::size_t i = 0; i < got.size(); ++i) {
          const auto a = got[i].grad().to_vector<float>();
          const auto b = expected[i].grad().to_vector<float>();
          for (std::size_t k = 0; k < a.size(); ++k) EXPECT_NEAR(a[k], b[k], 1e-6);
        }
      });
    }
  }
}

TEST(FsdpAccumulation, AnAccumulationThatIsDiscardedLeavesNoTrace) {
  for (const auto reduce : {f32, f64}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      const FSDPOptions options{.auto_wrap_policy = linears(),
                                .mixed_precision = {.reduce_dtype = reduce}};
      FSDP fsdp(small_model(), group, options);
      const auto gradient = [&] {
        loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
        return fsdp.parameters()[0].grad().to_vector<float>();
      };
      const auto expected = gradient();
      fsdp.module().zero_grad();
      const auto rest = memory_stats().live_total;
      {
        const auto guard = fsdp.no_sync();
        loss_of(fsdp(inputs_of(0, group->rank(), 1))).backward();
      }
      fsdp.discard_accumulation();
      EXPECT_EQ(memory_stats().live_total, rest);
      EXPECT_EQ(gradient(), expected);
    });
  }
}

TEST(FsdpAccumulation, AGuardOfNoSyncMayOutliveTheUnits) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(small_model(), group);
    const auto guard = fsdp.no_sync();
    fsdp.restore();
  });
}

TEST(FsdpAccumulation, KeptParametersAndGradientsTakeMemoryOfTheirOwnSize) {
  comm::LocalWorld(2).run([](const Group& group) {
    // A large unit among small ones: 12 x 4000, 4000 x 8, 8 x 8, ...
    FSDP fsdp(models::make_mlp("12-4000-8-8-8-8-5"), group,
              {.sharding_strategy = ShardingStrategy::shard_grad_op,
               .auto_wrap_policy = linears(),
               .zero_copy = false});
    const FSDPPlan& plan = fsdp.plan(inputs_of(0, 0, 0));
    std::int64_t elements = 0;
    for (const FSDPPlan::Unit& unit : plan.units) {
      for (const FSDPPlan::Flat& flat : unit.flats) elements += flat.elements;
    }
    EXPECT_EQ(plan.rise[static_cast<std::size_t>(MemoryCategory::parameters)], 4 * elements);
    const auto guard = fsdp.no_sync();
    loss_of(fsdp(inputs_of(0, group->rank(), 0))).backward();
    EXPECT_EQ(memory_stats().live[static_cast<std::size_t>(MemoryCategory::gradients)],
              4 * elements);
  });
}

}  // namespace
}  // namespace cohort
