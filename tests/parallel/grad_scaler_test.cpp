// The loss scale of a group.

#include "cohort/parallel/grad_scaler.h"

#include <gtest/gtest.h>

#include <atomic>

#include "cohort/optim/sgd.h"
#include "cohort/parallel/zero_redundancy_optimizer.h"
#include "parallel/ddp_fixture.h"
#include "support/values.h"

namespace cohort {
namespace {

using optim::SGD;
using optim::SGDOptions;
using Values = std::vector<double>;

Tensor weight(double value = 1) {
  return Tensor::full({3}, value, {.requires_grad = true});
}

TEST(DistributedGradScaler, FaultRow8ANaNOrInfinityOnOneRankLeavesTheStepOutOnAll) {
  for (const double bad : {std::nan(""), -std::numeric_limits<double>::infinity()}) {
    for (const bool unscale : {false, true}) {
      PerRank scales(3);
      PerRank weights(3);
      comm::LocalWorld(3).run([&](const Group& group) {
        const Tensor param = weight();
        SGD optimizer({param}, {.lr = 1});
        DistributedGradScaler scaler(group, {.init_scale = 4, .growth_interval = 2});
        for (int step = 0; step < 6; ++step) {
          Tensor(param).set_grad(Tensor::full({3}, 4));
          // In step 1 on rank 1, in step 3 on ranks 0 and 2.
          if ((step == 1 && group->rank() == 1) || (step == 3 && group->rank() != 1)) {
            narrow(param.grad(), 0, 2, 1).fill_(bad);
          }
          if (unscale) scaler.unscale_(optimizer);
          EXPECT_EQ(scaler.step(optimizer), step != 1 && step != 3);
          scaler.update();
          scales.push(group->rank(), scaler.get_scale());
        }
        weights.push(group->rank(), param.detach().to_vector<double>());
      });
      for (int rank = 0; rank < 3; ++rank) {
        EXPECT_EQ(scales[rank], (Values{4, 2, 2, 1, 1, 2}));
        // Gradients 1, 2, 4 and 4 after division by the scale.
        EXPECT_EQ(weights[rank], (Values{-10, -10, -10}));
      }
    }
  }
}

TEST(DistributedGradScaler, UnequalOptionsAreAMismatchOnAllRanks) {
  std::atomic<int> raised{0};
  comm::LocalWorld(2).run([&](const Group& group) {
    EXPECT_THROW(DistributedGradScaler(group, {.growth_interval = 1 + group->rank()}),
                 MismatchError);
    ++raised;
    group->barrier().wait();
  });
  EXPECT_EQ(raised, 2);
  EXPECT_THROW(DistributedGradScaler(nullptr), InvalidArgument);
}

TEST(DistributedGradScaler, ARankWithoutGradientsFollowsTheOthers) {
  comm::LocalWorld(2).run([](const Group& group) {
    const Tensor param = weight();
    SGD optimizer({param}, {.lr = 1});
    DistributedGradScaler scaler(group);
    if (group->rank() == 1) Tensor(param).set_grad(Tensor::full({3}, INFINITY));
    EXPECT_FALSE(scaler.step(optimizer));
    scaler.update();
    EXPECT_EQ(scaler.get_scale(), 32768);
    optimizer.zero_grad();
    EXPECT_THROW(scaler.step(optimizer), InvalidArgument) << "no rank has any";
  });
}

TEST(DistributedGradScaler, CostsOneSmallReductionPerStep) {
  comm::LocalWorld(2).run([](const Group& group) {
    const Tensor param = weight();
    SGD optimizer({param});
    DistributedGradScaler scaler(group);
    Tensor(param).set_grad(Tensor::ones({3}));
    group->reset_stats();
    scaler.unscale_(optimizer);
    scaler.step(optimizer);
    scaler.update();
    EXPECT_EQ(group->stats().total().count, 1);
    EXPECT_EQ(group->stats().total().logical_bytes, 4);
  });
}

TEST(DistributedGradScaler, UnderJoinRanksWithoutInputsHaveNoSay) {
  PerRank scales(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    DDP ddp(one_weight(), group);
    SGD optimizer(ddp.parameters());
    DistributedGradScaler scaler(group, {.init_scale = 4, .growth_interval = 1});
    ddp.join([&] {
      for (int i = 0; i < 1 + 2 * group->rank(); ++i) {
        optimizer.zero_grad();
        scaler.scale(sum(ddp(number(i == 1 ? INFINITY : 1)))).backward();
        EXPECT_EQ(scaler.step(optimizer), i != 1);
        scaler.update();
        scales.push(group->rank(), scaler.get_scale());
      }
    });
  });
  EXPECT_EQ(scales[0], (Values{8}));
  EXPECT_EQ(scales[1], (Values{8, 4, 8}));
}

TEST(DistributedGradScaler, TrainsInF16UnderDdpWithASharedOptimizer) {
  PerRank losses(2);
  comm::LocalWorld(2).run([&](const Group& group) {
    manual_seed(1);
    const auto model = std::make_shared<nn::Sequential>(nn::Linear(8, 16), nn::Linear(16, 1));
    DDP ddp(model, group, {.mixed_precision = {.param_dtype = f16, .reduce_dtype = f16}});
    ZeroRedundancyOptimizer<SGD> optimizer(ddp.parameters(), group, SGDOptions{.lr = 0.05});
    DistributedGradScaler scaler(group, {.init_scale = 0x1p24, .growth_interval = 50});
    const Tensor x = test::values({16, 8}, f32, 7 + static_cast<std::uint64_t>(group->rank()));
    int left_out = 0;
    double loss_value = 0;
    for (int step = 0; step < 40; ++step) {
      optimizer.zero_grad();
      const Tensor error = ddp(x).to(f32) - sum(x, {1}, true);
      const Tensor loss = mean(mul(error, error));
      scaler.scale(loss).backward();
      left_out += scaler.step(optimizer) ? 0 : 1;
      scaler.update();
      loss_value = loss.item();
      if (step == 0) losses.push(group->rank(), loss_value);
    }
    EXPECT_GT(left_out, 3) << "2^24 overflows f16, so the scale has to come down";
    EXPECT_LT(left_out, 20);
    losses.push(group->rank(), loss_value);
    losses.push(group->rank(), model->parameters()[0].to_vector<double>());
  });
  EXPECT_LT(losses[0][1], 0.2 * losses[0][0]);
  EXPECT_EQ(Values(losses[0].begin() + 2, losses[0].end()),
            Values(losses[1].begin() + 2, losses[1].end()));
}

}  // namespace
}  // namespace cohort
