// Whole parameters outside a step. Numbers in names are rows of the FSDP list in
// docs/conformance.md.

#include <gtest/gtest.h>

#include <algorithm>

#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

struct SummonCase {
  int world;
  FSDPOptions options;
  int shards;  // ranks that share a parameter out
};

std::vector<SummonCase> summon_cases() {
  FSDPOptions hybrid{.sharding_strategy = ShardingStrategy::hybrid_shard, .zero_copy = false};
  hybrid.shard_size = 2;
  return {{1, {}, 1},
          {2, {}, 2},
          {2, {.zero_copy = false}, 2},
          {3, {.mixed_precision = {.param_dtype = bf16}}, 3},
          {3, {.mixed_precision = {.param_dtype = bf16}, .zero_copy = false}, 3},
          {2, {.sharding_strategy = ShardingStrategy::shard_grad_op, .zero_copy = false}, 2},
          {2, {.sharding_strategy = ShardingStrategy::no_shard}, 1},
          {4, hybrid, 2}};
}

class FsdpSummon : public testing::TestWithParam<int> {
 protected:
  SummonCase run() const { return summon_cases()[static_cast<std::size_t>(GetParam())]; }
};
INSTANTIATE_TEST_SUITE_P(Layout, FsdpSummon,
                         testing::Range(0, static_cast<int>(summon_cases().size())));

std::shared_ptr<nn::Linear> linear() {
  manual_seed(3);
  return std::make_shared<nn::Linear>(5, 7);
}

TEST_P(FsdpSummon, Row62EditsStayWhereTheRankOwnsThemAndReplicasStayEqual) {
  const SummonCase& c = run();
  for (const bool writeback : {true, false}) {
    comm::LocalWorld(c.world).run([&](const Group& group) {
      FSDP fsdp(linear(), group, c.options);
      const State before = values_of(fsdp.full_state());
      const auto body = [&] {
        EXPECT_EQ(fsdp.module().weight.shape(), (Shape{7, 5}));
        EXPECT_EQ(fsdp.module().weight.to_vector<double>(), before.at("weight"));
        fsdp.module().weight.fill_(group->rank() + 10);
      };
      fsdp.summon_full_params(body, {.writeback = writeback});
      EXPECT_EQ(fsdp.module().weight.rank(), 1);
      const auto weight = values_of(fsdp.full_state()).at("weight");
      if (!writeback) {
        EXPECT_EQ(weight, before.at("weight"));
        return;
      }
      for (const auto& part : fsdp.sharded_state()) {
        if (part.name != "weight") continue;
        for (std::int64_t i = part.begin; i < part.end; ++i) {
          EXPECT_EQ(weight[static_cast<std::size_t>(i)], group->rank() % c.shards + 10)
              << "element " << i << " of rank " << group->rank();
        }
      }
    });
  }
}

TEST_P(FsdpSummon, Row62AnExceptionOfOneRanksBodyWritesNothingAndLeavesRows) {
  const SummonCase& c = run();
  comm::LocalWorld(c.world).run([&](const Group& group) {
    FSDP fsdp(linear(), group, c.options);
    const State before = values_of(fsdp.full_state());
    const auto body = [&] {
      fsdp.module().weight.fill_(1);
      if (group->rank() == 0) throw std::range_error("no");
    };
    if (group->rank() == 0) {
      EXPECT_THROW(fsdp.summon_full_params(body), std::range_error);
    } else {
      EXPECT_THROW(fsdp.summon_full_params(body), RemoteError);
    }
    EXPECT_EQ(fsdp.module().weight.rank(), 1);
    EXPECT_EQ(values_of(fsdp.full_state()), before);
  });
}

TEST_P(FsdpSummon, OfRank0AloneTheOthersKeepTheirRows) {
  const SummonCase& c = run();
  comm::LocalWorld(c.world).run([&](const Group& group) {
    FSDP fsdp(linear(), group, c.options);
    const State before = values_of(fsdp.full_state());
    bool called = false;
    fsdp.summon_full_params(
        [&] {
          called = true;
          EXPECT_EQ(fsdp.module().weight.rank(), group->rank() == 0 ? 2 : 1);
          if (group->rank() > 0) return;
          EXPECT_EQ(fsdp.module().weight.to_vector<double>(), before.at("weight"));
        },
        {.writeback = false, .rank0_only = true});
    EXPECT_TRUE(called);
    EXPECT_THROW(fsdp.summon_full_params([] {}, {.rank0_only = true}), InvalidArgument);
  });
}

TEST_P(FsdpSummon, BetweenForwardAndBackwardTheGradientsAreThoseWithoutIt) {
  const SummonCase& c = run();
  comm::LocalWorld(c.world).run([&](const Group& group) {
    FSDP fsdp(linear(), group, c.options);
    const Tensor x = Tensor::full({2, 5}, group->rank() + 1);
    const auto gradients = [&](bool summon) {
      fsdp.module().zero_grad();
      const Tensor loss = sum(fsdp(x).to(f32));
      if (summon) {
        fsdp.summon_full_params([&] { EXPECT_EQ(fsdp.module().weight.rank(), 2); },
                                {.writeback = false});
      }
      loss.backward();
      return fsdp.module().weight.grad().template to_vector<float>();
    };
    const auto expected = gradients(false);
    EXPECT_EQ(gradients(true), expected);
    EXPECT_EQ(gradients(false), expected);
  });
}

struct Calling : nn::ModuleOf<Calling> {
  nn::Child<nn::Linear> inner = make_module<nn::Linear>("inner", 3, 3);
  std::function<void()> in_forward;
  Tensor forward(const Tensor& x) {
    const Tensor y = inner(x);
    if (in_forward) in_forward();
    return y;
  }
};

TEST(FsdpSummonErrors, Row62InsideForwardBackwardOrAnotherSummonItIsRefused) {
  comm::LocalWorld(2).run([](const Group& group) {
    const auto net = std::make_shared<Calling>();
    FSDP fsdp(net, group, {.auto_wrap_policy = linears()});
    int refused = 0;
    const std::vector<std::function<void()>> calls{
        [&] { fsdp.summon_full_params([] {}); }, [&] { fsdp.full_state(); },
        [&] { fsdp.load_full_state({}); }, [&] { fsdp.load_sharded_state(ShardedState{}); }};
    const auto try_all = [&] {
      for (const auto& call : calls) {
        EXPECT_THROW(call(), InvalidArgument);
        ++refused;
      }
    };
    net->in_forward = try_all;
    const Tensor y = fsdp(Tensor::ones({2, 3}));
    EXPECT_EQ(refused, 4);
    register_post_accumulate_grad_hook(net->inner->weight, [&](const Tensor&) { try_all(); });
    sum(y).backward();
    EXPECT_EQ(refused, 8);
    net->in_forward = {};
    fsdp.summon_full_params([&] {
      try_all();
      EXPECT_THROW(fsdp(Tensor::ones({2, 3})), InvalidArgument);
      EXPECT_THROW(net->inner(Tensor::ones({2, 3})), InvalidArgument);
      EXPECT_THROW(fsdp.sharded_state(), InvalidArgument);
    });
    EXPECT_EQ(refused, 12);
    EXPECT_EQ(net->inner->weight.rank(), 1);
    sum(fsdp(Tensor::ones({2, 3}))).backward();
  });
}

TEST(FsdpSummonErrors, RanksThatAskForDifferentThingsAreToldSo) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(linear(), group);
    EXPECT_THROW(fsdp.summon_full_params([] {}, {.writeback = group->rank() == 0}), MismatchError);
    fsdp.summon_full_params([] {});
  });
}

}  // namespace
}  // namespace cohort
