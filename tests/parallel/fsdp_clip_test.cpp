// Norms over all ranks' parts, and the loss scale. Numbers in names are rows of the FSDP list in
// docs/conformance.md.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "cohort/optim/clip_grad.h"
#include "cohort/optim/sgd.h"
#include "cohort/parallel/grad_scaler.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// One way of sharing four layers out.
struct Sharing {
  const char* name;
  int world;
  std::vector<ShardingStrategy> strategies;  // of the units in turn, of all when it is one
};

std::ostream& operator<<(std::ostream& out, const Sharing& sharing) {
  return out << sharing.name << sharing.world;
}

FSDPOptions options_of(const Sharing& sharing) {
  FSDPOptions options{
      .sharding_strategy = sharing.strategies[0], .auto_wrap_policy = linears(), .shard_size = 2};
  options.unit_options = [sharing](const nn::Module&, const std::string& name,
                                   FSDPUnitOptions unit) {
    const std::size_t number = name.empty() ? 0 : static_cast<std::size_t>(name[0] - '0') / 2;
    unit.sharding_strategy = sharing.strategies[number % sharing.strategies.size()];
    return unit;
  };
  return options;
}

class FsdpClip : public testing::TestWithParam<Sharing> {};
using S = ShardingStrategy;
INSTANTIATE_TEST_SUITE_P(
    Sharings, FsdpClip,
    testing::Values(Sharing{"full", 1, {S::full_shard}}, Sharing{"full", 2, {S::full_shard}},
                    Sharing{"full", 3, {S::full_shard}}, Sharing{"full", 4, {S::full_shard}},
                    Sharing{"hybrid", 4, {S::hybrid_shard}}, Sharing{"none", 3, {S::no_shard}},
                    Sharing{"mixed", 2, {S::full_shard, S::no_shard}},
                    Sharing{"mixed", 4, {S::hybrid_shard, S::full_shard, S::no_shard}}));

double row_norm(const Tensor& row, double p) {
  double total = 0;
  for (const double value : row.to_vector<double>()) {
    const double power = std::pow(std::abs(value), std::isinf(p) ? 1 : p);
    total = std::isinf(p) ? std::max(total, power) : total + power;
  }
  return std::isinf(p) ? total : std::pow(total, 1 / p);
}

// With equal inputs every rank's gradients, averaged, are those that a single process would have,
// up to the rounding of the mean; DDP holds them whole.
TEST_P(FsdpClip, Row52TheNormIsThatOfWholeGradientsForEveryType) {
  comm::LocalWorld(GetParam().world).run([&](const Group& group) {
    DDP ddp(small_model(), group);
    FSDP fsdp(small_model(), group, options_of(GetParam()));
    for (const double p : {0.5, 1., 2., 3., 10., kInfinity}) {
      for (const double max_norm : {0.5, 1e9}) {
        ddp.module().zero_grad();
        fsdp.module().zero_grad();
        loss_of(ddp(inputs_of(0, 0, 0))).backward();
        loss_of(fsdp(inputs_of(0, 0, 0))).backward();
        const double expected = optim::clip_grad_norm_(ddp.parameters(), max_norm, {p});
        EXPECT_EQ(fsdp.clip_grad_norm_(max_norm, p), expected) << p;
        std::size_t own = 0;
        for (std::size_t i = 0; i < fsdp.parameters().size(); ++i) {
          const Tensor& gradient = fsdp.parameters()[i].grad();
          EXPECT_LE(row_norm(gradient, p), max_norm);
          const auto all = ddp.parameters()[i].grad().template to_vector<double>();
          const auto part = gradient.to_vector<double>();
          own += part.size();
          EXPECT_NE(std::search(all.begin(), all.end(), part.begin(), part.end()), all.end())
              << "row " << i << " is no part of the whole gradient";
        }
        EXPECT_GT(own, 0u);
      }
    }
  });
}

TEST_P(FsdpClip, Row52ZeroGradientsStayAsTheyAre) {
  comm::LocalWorld(GetParam().world).run([&](const Group& group) {
    FSDP fsdp(small_model(), group, options_of(GetParam()));
    sum(fsdp(inputs_of(0, 0, 0)) * 0.0).backward();
    for (const double p : {1., 2., 3., kInfinity}) {
      EXPECT_EQ(fsdp.clip_grad_norm_(0, p), 0);
      for (const Tensor& parameter : fsdp.parameters()) {
        for (const double value : parameter.grad().to_vector<double>()) EXPECT_EQ(value, 0);
      }
    }
  });
}

// A NaN or infinity in the first part of the first parameter and, where ranks have different parts,
// nowhere else.
TEST_P(FsdpClip, Row53WhatIsNotFiniteOnOneRankReachesAll) {
  comm::LocalWorld(GetParam().world).run([&](const Group& group) {
    FSDP fsdp(small_model(), group, options_of(GetParam()));
    const int shard = fsdp.plan().units[0].shard_size;
    for (const double bad : {std::nan(""), kInfinity}) {
      for (const double p : {1., 2., 3., kInfinity}) {
        fsdp.module().zero_grad();
        loss_of(fsdp(inputs_of(0, 0, 0))).backward();
        const Tensor& row = fsdp.parameters()[0].grad();
        if (group->rank() % shard == 0) narrow(row, 0, 0, 1).fill_(bad);
        EXPECT_THROW(fsdp.clip_grad_norm_(1, p, /*error_if_nonfinite=*/true), Error);
        EXPECT_TRUE(std::isfinite(row.to_vector<double>().back())) << "changed before the error";
        const double norm = fsdp.clip_grad_norm_(1, p);
        EXPECT_TRUE(std::isnan(bad) ? std::isnan(norm) : norm == kInfinity) << p << ' ' << norm;
      }
    }
  });
}

TEST(FsdpClipUse, ARankWithoutElementsTakesPart) {
  comm::LocalWorld(4).run([](const Group& group) {
    FSDP fsdp(one_weight(), group);
    EXPECT_EQ(fsdp.clip_grad_norm_(1), 0) << "before the first backward";
    sum(fsdp(number(3))).backward();
    for (const double p : {1., 2., 3., kInfinity}) {
      fsdp.module().zero_grad();
      sum(fsdp(number(3))).backward();
      EXPECT_DOUBLE_EQ(fsdp.clip_grad_norm_(1, p), 3);
    }
    EXPECT_EQ(fsdp.module().weight.numel(), group->rank() == 0 ? 1 : 0);
  });
}

TEST(FsdpClipUse, Row53CallsAtTheWrongTimeAreErrors) {
  struct Caller : nn::ModuleOf<Caller> {
    Tensor weight = register_parameter("weight", Tensor::ones({4}));
    std::function<void()> inside;
    Tensor forward(const Tensor& x) {
      if (inside) inside();
      return x * weight;
    }
  };
  comm::LocalWorld(2).run([](const Group& group) {
    FSDP fsdp(std::make_shared<Caller>(), group);
    const auto refused = [&] { EXPECT_THROW(fsdp.clip_grad_norm_(1), InvalidArgument); };
    int calls = 0;
    fsdp.module().inside = [&] { refused(), ++calls; };
    const Tensor y = fsdp(Tensor::ones({4}));
    fsdp.module().inside = nullptr;
    register_hook(y, [&](const Tensor&) {
      refused();
      ++calls;
      return Tensor();
    });
    sum(y).backward();
    EXPECT_EQ(calls, 2);
    for (const double p : {0., -2., std::nan("")}) {
      EXPECT_THROW(fsdp.clip_grad_norm_(1, p), InvalidArgument);
    }
    EXPECT_THROW(fsdp.clip_grad_norm_(-1), InvalidArgument);
    const auto guard = fsdp.no_sync();
    sum(fsdp(Tensor::ones({4}))).backward();
    EXPECT_THROW(fsdp.clip_grad_norm_(1), InvalidArgument) << "there is no gradient to clip yet";
  });
}

// The gradient of one element overflows, which lies with one rank.
struct Overflowing : nn::ModuleOf<Overflowing> {
  Tensor weight = register_parameter("weight", Tensor::ones({96}));
  Tensor forward(const Tensor& x) { return x * weight; }
};

class FsdpScaler : public testing::TestWithParam<Sharing> {};
INSTANTIATE_TEST_SUITE_P(Sharings, FsdpScaler,
                         testing::Values(Sharing{"full", 2, {S::full_shard}},
                                         Sharing{"full", 3, {S::full_shard}},
                                         Sharing{"hybrid", 4, {S::hybrid_shard}},
                                         Sharing{"none", 2, {S::no_shard}}));

TEST_P(FsdpScaler, Row53AnOverflowInOneRanksPartLeavesTheStepOutOnAll) {
  for (const bool unscale : {true, false}) {
    for (const bool low : {true, false}) {
      if (low && unscale) continue;
      comm::LocalWorld(GetParam().world).run([&](const Group& group) {
        FSDPOptions options = options_of(GetParam());
        options.mixed_precision = {.param_dtype = f16, .keep_low_precision_grads = low};
        options.auto_wrap_policy = {};
        options.unit_options = {};
        FSDP fsdp(std::make_shared<Overflowing>(), group, options);
        optim::SGD sgd(fsdp.parameters(), {.lr = 1});
        ShardedGradScaler scaler(group, {.init_scale = 4, .growth_interval = 100});
        for (int step = 0; step < 3; ++step) {
          Tensor x = Tensor::full({96}, 0.5);
          if (step == 1) narrow(x, 0, 95, 1).fill_(60000);
          sgd.zero_grad();
          scaler.scale(sum(fsdp(x).to(f32))).backward();
          bool found = false;
          for (const double value : fsdp.module().weight.grad().template to_vector<double>()) {
            found = found || !std::isfinite(value);
          }
          const bool owner = group->rank() % fsdp.plan().units[0].shard_size ==
                             fsdp.plan().units[0].shard_size - 1;
          EXPECT_EQ(found, step == 1 && owner) << "others' parts are finite";
          if (unscale) scaler.unscale_(sgd);
          EXPECT_EQ(scaler.step(sgd), step != 1);
          scaler.update();
          EXPECT_EQ(scaler.get_scale(), step == 0 ? 4 : 2);
        }
        for (const double value : fsdp.module().weight.detach().template to_vector<double>()) {
          EXPECT_EQ(value, 0) << "two steps of one half";
        }
      });
    }
  }
}

TEST(FsdpScalerUse, RanksWithoutElementsFollow) {
  comm::LocalWorld(3).run([](const Group& group) {
    FSDP fsdp(one_weight(), group, {.mixed_precision = {.param_dtype = f16}});
    optim::SGD sgd(fsdp.parameters(), {.lr = 1});
    ShardedGradScaler scaler(group, {.init_scale = 2});
    EXPECT_THROW(scaler.step(sgd), InvalidArgument) << "no rank has gradients";
    for (const double x : {1., 60000.}) {
      sgd.zero_grad();
      scaler.scale(sum(fsdp(number(x)).to(f32))).backward();
      scaler.unscale_(sgd);
      EXPECT_EQ(fsdp.clip_grad_norm_(100), x == 1 ? 1 : kInfinity);
      EXPECT_EQ(scaler.step(sgd), x == 1);
      scaler.update();
    }
    EXPECT_EQ(scaler.get_scale(), 1);
    for (const double value : fsdp.module().weight.detach().template to_vector<double>()) {
      EXPECT_EQ(value, 0);
    }
  });
}

}  // namespace
}  // namespace cohort
