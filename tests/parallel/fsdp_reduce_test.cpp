// What the ranks' sum of gradients is divided by. Numbers in names are rows of the FSDP list in
// docs/conformance.md.

#include <gtest/gtest.h>

#include <cmath>

#include "cohort/optim/sgd.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

FSDPOptions with_strategy(ShardingStrategy strategy) {
  return {.sharding_strategy = strategy, .shard_size = 2};
}

// As DeepSpeed's reduction modes: weight 0, learning rate 1.
TEST(FsdpDivideFactor, Row38MeanAndSumUnderEveryStrategy) {
  for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op,
                              ShardingStrategy::no_shard, ShardingStrategy::hybrid_shard}) {
    for (const int world : {2, 4}) {
      for (const double factor : {0., 1., 1.25}) {
        comm::LocalWorld(world).run([&](const Group& group) {
          auto layer = std::make_shared<nn::Linear>(2, 1, nn::LinearOptions{.bias = false});
          Tensor(layer->weight.detach()).zero_();
          FSDP fsdp(layer, group, with_strategy(strategy));
          if (factor > 0) fsdp.set_gradient_divide_factor(factor);
          optim::SGD sgd(fsdp.parameters(), {.lr = 1});
          sum(fsdp(Tensor::from<float>({1, 2}, {1, 2}))).backward();
          sgd.step();
          const double times = factor > 0 ? world / factor : 1;
          const Tensor expected = Tensor::from<double>({-times, -2 * times}, {2}).to(f32);
          EXPECT_EQ(values_of(fsdp.full_state()).at("weight"), expected.to_vector<double>())
              << strategy << world << factor;
        });
      }
    }
  }
}

TEST(FsdpDivideFactor, Row29FactorsOfF16AreOneDivisionAfterTheSum) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(one_weight(), group, {.mixed_precision = {.param_dtype = f16}});
    fsdp.set_gradient_divide_factor(1.3 * 1.3);  // before and after, in one
    sum(fsdp(number(1 + 2 * group->rank())).to(f32)).backward();
    const Tensor& weight = fsdp.module().weight;
    if (weight.numel() == 0) return;
    const Tensor once = Tensor::scalar(static_cast<float>(4 / 1.69)).to(f16);
    EXPECT_EQ(grad_of(weight), once.item());
  });
}

TEST(FsdpDivideFactor, InAWorldOfOneToo) {
  comm::LocalWorld(1).run([](const Group& group) {
    FSDP fsdp(one_weight(), group);
    fsdp.set_gradient_divide_factor(4);
    sum(fsdp(number(2))).backward();
    EXPECT_EQ(grad_of(fsdp.module().weight), 0.5);
  });
}

TEST(FsdpDivideFactor, TwoToTheFifteenStaysFiniteInF16) {
  for (const auto strategy :
       {ShardingStrategy::full_shard, ShardingStrategy::no_shard, ShardingStrategy::hybrid_shard}) {
    for (const int world : {2, 4}) {
      comm::LocalWorld(world).run([&](const Group& group) {
        FSDPOptions options = with_strategy(strategy);
        options.mixed_precision = {.param_dtype = f16};
        FSDP fsdp(one_weight(), group, options);
        sum(fsdp(number(32768)).to(f32)).backward();
        const Tensor& weight = fsdp.module().weight;
        if (weight.numel() > 0) {
          EXPECT_EQ(grad_of(weight), 32768) << strategy << world;
        }
      });
    }
  }
}

TEST(FsdpDivideFactor, WhatCannotBeIsRefused) {
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(one_weight(), group);
    for (const double factor : {0., -1., HUGE_VAL, std::nan("")}) {
      EXPECT_THROW(fsdp.set_gradient_divide_factor(factor), InvalidArgument);
    }
    EXPECT_THROW(fsdp.set_gradient_divide_factor(1 + group->rank()), MismatchError);
    fsdp.set_gradient_divide_factor(1);
    EXPECT_THROW(fsdp.register_comm_hook(fsdp_hooks::noop()), InvalidArgument);
  });
}

}  // namespace
}  // namespace cohort
