// Uneven inputs. Numbers in names are rows of docs/conformance.md. Rank r gives x = r + 1 unless
// said otherwise.

#include "cohort/parallel/join.h"

#include <gtest/gtest.h>

#include <atomic>

#include "cohort/nn/norm.h"
#include "cohort/optim/sgd.h"
#include "parallel/ddp_fixture.h"

namespace cohort {
namespace {

using Values = std::vector<double>;

// The gradient after each of a rank's steps; rank r makes steps[r] of them, with x = 50.
PerRank train_uneven(const std::vector<int>& steps, const JoinOptions& join,
                     const DDPOptions& options = {}) {
  PerRank got(static_cast<int>(steps.size()));
  comm::LocalWorld(static_cast<int>(steps.size())).run([&](const Group& group) {
    DDP ddp(one_weight(), group, options);
    ddp.join(
        [&] {
          for (int i = 0; i < steps[static_cast<std::size_t>(group->rank())]; ++i) {
            ddp.module().zero_grad();
            sum(ddp(number(50))).backward();
            got.push(group->rank(), grad_of(ddp.module().weight));
          }
        },
        join);
  });
  return got;
}

TEST(Join, Row72DividesByTheInitialOrTheLiveNumberOfRanks) {
  const PerRank initial = train_uneven({2, 4}, {});
  EXPECT_EQ(initial[0], (Values{50, 50}));
  EXPECT_EQ(initial[1], (Values{50, 50, 25, 25}));
  const PerRank live = train_uneven({2, 4}, {.divide_by_initial_world_size = false});
  EXPECT_EQ(live[0], (Values{50, 50}));
  EXPECT_EQ(live[1], (Values{50, 50, 50, 50}));
}

TEST(Join, EveryOrderOfLeaving) {
  for (const std::vector<int>& steps :
       {std::vector{4, 1, 2}, std::vector{0, 0, 3}, std::vector{3, 0, 0}, std::vector{0, 0, 0},
        std::vector{2, 2, 2}, std::vector{0, 2, 1}}) {
    const PerRank got = train_uneven(steps, {.divide_by_initial_world_size = false});
    for (int rank = 0; rank < 3; ++rank) {
      EXPECT_EQ(got[rank],
                Values(static_cast<std::size_t>(steps[static_cast<std::size_t>(rank)]), 50));
    }
  }
}

TEST(Join, Row73ARankWithoutInputsGetsTheLastRanksState) {
  PerRank gradients(2);
  PerRank weights(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    ddp.join([&] {
      for (int i = 0; i < 2 * group->rank(); ++i) {
        ddp.module().zero_grad();
        sum(ddp(number(group->rank() + 1))).backward();
        gradients.push(group->rank(), grad_of(ddp.module().weight));
      }
      const NoGrad no_grad;
      if (group->rank() == 1) ddp.module().weight.fill_(101);
    });
    weights.push(group->rank(), ddp.module().weight.item());
  });
  EXPECT_EQ(gradients[0], Values{});
  EXPECT_EQ(gradients[1], (Values{1, 1}));
  EXPECT_EQ(weights[0], Values{101});
  EXPECT_EQ(weights[1], Values{101});
}

TEST(Join, Row74EarlyTerminationIsAnErrorOnAllRanksWhenAskedFor) {
  PerRank steps(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    int done = 0;
    const std::string message = message_of<InputsExhausted>([&] {
      ddp.join(
          [&] {
            for (int i = 0; i < 2 + 2 * group->rank(); ++i) {
              sum(ddp(number(1))).backward();
              ++done;
            }
          },
          {.throw_on_early_termination = true});
    });
    EXPECT_NE(message.find(group->rank() == 0 ? "exhausted all inputs" : "at least one rank"),
              std::string::npos)
        << message;
    steps.push(group->rank(), done);
    ddp.module().zero_grad();  // both go on
    sum(ddp(number(group->rank() + 1))).backward();
    EXPECT_EQ(grad_of(ddp.module().weight), 1.5);
  });
  EXPECT_EQ(steps[0], Values{2});
  EXPECT_EQ(steps[1], Values{2});
}

TEST(Join, Row76DisabledItOnlyRunsTheBody) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    group->reset_stats();
    ddp.join([&] { sum(ddp(number(group->rank() + 1))).backward(); }, {.enable = false});
    EXPECT_EQ(grad_of(ddp.module().weight), 1.5);
    EXPECT_EQ(group->stats().total().count, 1);
  });
}

TEST(Join, Row76AnExceptionOfTheBodyPassesThroughUnchanged) {
  for (const bool enable : {false, true}) {
    comm::LocalWorld(2).run([&](const Group& group) {
      DDP ddp(one_weight(), group);
      EXPECT_THROW(ddp.join([] { throw std::range_error("mine"); }, {.enable = enable}),
                   std::range_error);
      sum(ddp(number(group->rank() + 1))).backward();
      EXPECT_EQ(grad_of(ddp.module().weight), 1.5);
    });
  }
}

TEST(Join, Row77OneGroupAndAtLeastOneJoinable) {
  comm::LocalWorld(2).run([](const Group& group) {
    const Group other = group->split(0);
    DDP first(one_weight(), group);
    DDP second(one_weight(), other);
    EXPECT_THROW(join({}, [] {}), InvalidArgument);
    EXPECT_THROW(join({&first, &second}, [] {}), InvalidArgument);
  });
}

TEST(Join, SeveralModelsOfOneGroupJoinTogether) {
  PerRank got(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP first(one_weight(), group);
    DDP second(one_weight(2), group);
    join({&first, &second}, [&] {
      for (int i = 0; i < 1 + group->rank(); ++i) {
        first.module().zero_grad();
        second.module().zero_grad();
        sum(second(first(number(1)))).backward();
        got.push(group->rank(), grad_of(first.module().weight));
      }
    });
  });
  EXPECT_EQ(got[0], (Values{2}));
  EXPECT_EQ(got[1], (Values{2, 1}));
}

struct Counting : nn::ModuleOf<Counting> {
  nn::Child<nn::Linear> a = register_module("a", one_weight());
  nn::Child<nn::Linear> b = register_module("b", one_weight());
  Tensor seen = register_buffer("seen", Tensor::zeros({1}));
  Tensor forward(const Tensor& x, bool both) {
    seen.storage().bump_version();
    *seen.data<float>() += 1;
    return both ? a(x) + b(x) : a(x);
  }
};

TEST(Join, CoversBuffersAccumulationUnusedParametersAndTheUsersOwnCollectives) {
  PerRank got(3);
  comm::LocalWorld(3).run([&](const Group& group) {
    const int rank = group->rank();
    DDP ddp(std::make_shared<Counting>(), group, {.find_unused_parameters = true});
    ddp.join([&] {
      for (int i = 0; i < 3 - rank; ++i) {  // rank 0 has most
        ddp.module().zero_grad();
        {
          const NoSync guard = ddp.no_sync();
          sum(ddp(number(1), true)).backward();
        }
        sum(ddp(number(2), rank == 1)).backward();
        const Tensor most = Tensor::scalar(rank + 10);
        group->all_reduce(most, comm::ReduceOp::max).wait();
        got.push(rank,
                 {grad_of(ddp.module().a->weight), grad_of(ddp.module().b->weight), most.item()});
      }
    });
    EXPECT_EQ(ddp.module().seen.item(), 6)
        << "rank 0 was the last, after two forwards in each of 3";
    // All three go on together: buckets and rebuilds agree.
    ddp.module().zero_grad();
    sum(ddp(number(3), true)).backward();
    EXPECT_EQ(grad_of(ddp.module().b->weight), 3);
  });
  // a: 1 + 2 on each rank; b: 1, and 2 more on rank 1.
  EXPECT_EQ(got[0].size(), 9u);
  EXPECT_EQ(Values(got[0].begin(), got[0].begin() + 3), (Values{3, 5.0f / 3, 12}));
  EXPECT_EQ(Values(got[0].begin() + 3, got[0].begin() + 6), (Values{2, 4.0f / 3, 11}));
  EXPECT_EQ(Values(got[0].begin() + 6, got[0].end()), (Values{1, 1.0f / 3, 10}));
}

TEST(Join, StepsAfterAnUnevenEpochRebuildBucketsTogether) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(std::make_shared<Counting>(), group, {.bucket_cap_mb = 1e-6, .last_bucket_cap_mb = 0});
    for (int epoch = 0; epoch < 2; ++epoch) {
      ddp.join([&] {
        for (int i = 0; i < (group->rank() == 1 ? 1 : 0); ++i) sum(ddp(number(1), true)).backward();
      });
    }
    for (int step = 0; step < 2; ++step) {
      ddp.module().zero_grad();
      sum(ddp(number(group->rank() + 1), true)).backward();
      EXPECT_EQ(grad_of(ddp.module().b->weight), 1.5);
    }
    EXPECT_EQ(ddp.rebuilds(), 1);
  });
}

TEST(Join, DoesNotNest) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP ddp(one_weight(), group);
    ddp.join([&] { EXPECT_THROW(ddp.join([] {}), InvalidArgument); });
  });
}

TEST(Join, EachRankKeepsItsOwnStaticGraph) {
  comm::LocalWorld(2).run([](const Group& group) {
    struct Either : nn::ModuleOf<Either> {
      nn::Child<nn::Linear> a = register_module("a", one_weight());
      nn::Child<nn::Linear> b = register_module("b", one_weight());
      Tensor forward(const Tensor& x, bool first) { return first ? a(x) : b(x); }
    };
    DDP ddp(std::make_shared<Either>(), group, {.static_graph = true});
    const auto step = [&] {
      ddp.module().zero_grad();
      sum(ddp(number(group->rank() + 1), group->rank() == 0)).backward();
    };
    ddp.join(step);
    step();
    EXPECT_EQ(grad_of(ddp.module().a->weight), 0.5);
    EXPECT_EQ(grad_of(ddp.module().b->weight), 1);
  });
}

TEST(Join, UnderAPolicyOfCountsTheRestIsDividedByWhatIsThere) {
  PerRank got(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group, {.reduce_policy = ReducePolicy::count});
    ddp.join([&] {
      for (int i = 0; i < 1 + group->rank(); ++i) {
        ddp.module().zero_grad();
        ddp.count(group->rank() + 1);
        sum(ddp(number(6))).backward();
        got.push(group->rank(), grad_of(ddp.module().weight));
      }
    });
  });
  EXPECT_EQ(got[0], (Values{4}));
  EXPECT_EQ(got[1], (Values{4, 3}));
}

TEST(Join, WhatCannotBeShadowedEndsTheGroupWithAClearError) {
  std::atomic<int> raised{0};
  EXPECT_THROW(comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    const std::string message = message_of<Error>([&] {
      ddp.join([&] {
        if (group->rank() == 1) group->allocate({100});
      });
    });
    EXPECT_NE(message.find("cannot take part in allocate"), std::string::npos) << message;
    ++raised;
    throw InvalidArgument("end");
  }),
               InvalidArgument);
  EXPECT_EQ(raised, 2);
}

TEST(Join, OptionsThatExcludeEachOther) {
  comm::LocalWorld(2).run([](const Group& group) {
    DDP sums(one_weight(), group, {.reduce_policy = ReducePolicy::sum});
    EXPECT_THROW(sums.join([] {}, {.divide_by_initial_world_size = false}), InvalidArgument);
    DDP hooked(one_weight(), group);
    hooked.register_comm_hook(comm_hooks::all_reduce(group));
    EXPECT_THROW(hooked.join([] {}, {.divide_by_initial_world_size = false}), InvalidArgument);
  });
}

}  // namespace
}  // namespace cohort
