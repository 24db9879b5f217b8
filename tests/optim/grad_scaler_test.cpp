#include "cohort/optim/grad_scaler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/reduce.h"
#include "cohort/ops/shape.h"
#include "cohort/optim/adam.h"
#include "cohort/optim/clip_grad.h"
#include "cohort/optim/sgd.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort::optim {
namespace {

using test::message_of;
using test::same_bits;
using test::values;
using testing::HasSubstr;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor parameter(const Shape& shape, DType dtype = f32) {
  return values(shape, f64, 1).detach().to(dtype).clone().set_requires_grad(true);
}

void set_gradient(Tensor param, double value) {
  param.set_grad(Tensor::full(param.shape(), value, param.options()));
}

// sum(w * w * factor) of all parameters.
Tensor loss_of(const std::vector<Tensor>& params, double factor = 1) {
  Tensor total = Tensor::zeros({});
  for (const Tensor& param : params) total = total + mul(sum(mul(param, param)), factor).to(f32);
  return total;
}

TEST(GradScaler, HasPyTorchsDefaults) {
  const GradScaler scaler;
  EXPECT_EQ(scaler.get_scale(), 65536);
  EXPECT_TRUE(scaler.is_enabled());
  const GradScalerOptions options;
  EXPECT_EQ(options.growth_factor, 2);
  EXPECT_EQ(options.backoff_factor, 0.5);
  EXPECT_EQ(options.growth_interval, 2000);
}

class GradScalerCalls : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Unscale, GradScalerCalls, testing::Bool());

TEST_P(GradScalerCalls, AScaledStepHasTheBitsOfAPlainOne) {
  const std::vector<Tensor> params{parameter({3, 5}), parameter({100})};
  const std::vector<Tensor> plain_params{parameter({3, 5}), parameter({100})};
  Adam optimizer(params);
  Adam plain(plain_params);
  GradScaler scaler;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    plain.zero_grad();
    scaler.scale(loss_of(params)).backward();
    loss_of(plain_params).backward();
    if (GetParam()) scaler.unscale_(optimizer);
    for (std::size_t i = 0; i < params.size(); ++i) {
      const double factor = GetParam() ? 1 : 65536;
      EXPECT_TRUE(same_bits(params[i].grad(), mul(plain_params[i].grad(), factor)));
    }
    EXPECT_TRUE(scaler.step(optimizer));
    plain.step();
    scaler.update();
    for (std::size_t i = 0; i < params.size(); ++i) {
      EXPECT_TRUE(same_bits(params[i].detach(), plain_params[i].detach()));
    }
  }
}

TEST_P(GradScalerCalls, AnOverflowLeavesTheStepOutAndTheScaleBacksOff) {
  for (const DType dtype : {f32, f64, bf16, f16}) {
    if (GetParam() && dtype == f16) continue;
    for (const double bad : {kInfinity, -kInfinity, std::nan("")}) {
      for (const std::int64_t at : {0, 12, 36}) {
        SCOPED_TRACE(str(dtype, " ", bad, " at ", at));
        const std::vector<Tensor> params{parameter({4}, dtype), parameter({37}, dtype)};
        const Tensor before = params[1].detach().clone();
        SGD optimizer(params);
        GradScaler scaler;
        for (const Tensor& param : params) set_gradient(param, 1);
        narrow(params[1].grad(), 0, at, 1).fill_(bad);
        if (GetParam()) scaler.unscale_(optimizer);
        EXPECT_FALSE(scaler.step(optimizer));
        EXPECT_TRUE(same_bits(params[1].detach(), before));
        EXPECT_EQ(optimizer.step_count(params[0]), 0);
        scaler.update();
        EXPECT_EQ(scaler.get_scale(), 32768);
        for (const Tensor& param : params) set_gradient(param, 1);
        EXPECT_TRUE(scaler.step(optimizer)) << "a found overflow must not last";
      }
    }
  }
}

TEST(GradScaler, TheLargestFiniteNumbersAreNoOverflow) {
  for (const auto& [dtype, most] : {std::pair{f32, 3.4028234663852886e38},
                                    {f64, 1.7976931348623157e308},
                                    {bf16, 3.3895313892515355e38},
                                    {f16, 65504.0}}) {
    const Tensor param = parameter({40}, dtype);
    SGD optimizer({param});
    GradScaler scaler;
    set_gradient(param, -most);
    EXPECT_TRUE(scaler.step(optimizer)) << dtype;
  }
}

TEST(GradScaler, GrowsAfterAnIntervalOfGoodStepsInARow) {
  const Tensor param = parameter({2});
  SGD optimizer({param});
  GradScaler scaler(
      {.init_scale = 8, .growth_factor = 4, .backoff_factor = 0.25, .growth_interval = 3});
  std::vector<double> scales;
  for (const double gradient : {1.0, 1.0, 1.0, 1.0, 1.0, kInfinity, 1.0, 1.0, 1.0}) {
    set_gradient(param, gradient);
    scaler.step(optimizer);
    scaler.update();
    scales.push_back(scaler.get_scale());
  }
  EXPECT_THAT(scales, testing::ElementsAre(8, 8, 32, 32, 32, 8, 8, 8, 32));
}

TEST(GradScaler, TheScaleStaysANumber) {
  const Tensor param = parameter({2});
  SGD optimizer({param});
  GradScaler scaler(
      {.init_scale = 1e38, .growth_factor = 10, .backoff_factor = 1e-30, .growth_interval = 1});
  set_gradient(param, 1);
  scaler.step(optimizer);
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 1e38) << "1e39 is an infinity in f32";
  for (int i = 0; i < 4; ++i) {
    set_gradient(param, kInfinity);
    scaler.step(optimizer);
    scaler.update();
  }
  EXPECT_GT(scaler.get_scale(), 0);
}

TEST(GradScaler, ClippingBetweenUnscaleAndStepSeesTheTrueGradients) {
  const Tensor param = parameter({4});
  const Tensor before = param.detach().clone();
  SGD optimizer({param}, {.lr = 1});
  GradScaler scaler;
  set_gradient(param, 3 * 65536.0);
  scaler.unscale_(optimizer);
  EXPECT_EQ(clip_grad_norm_({param}, 1e9), 6);
  clip_grad_value_({param}, 0.5);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(same_bits(param.detach(), sub(before, 0.5)));
}

TEST(GradScaler, GradientsWithGapsOrAnotherOrderAreSeenAndUnscaled) {
  const Tensor param = parameter({3, 4});
  SGD optimizer({param});
  GradScaler scaler({.init_scale = 2});
  Tensor(param).set_grad(transpose(Tensor::full({4, 3}, 6), 0, 1));
  scaler.unscale_(optimizer);
  EXPECT_THAT(param.grad().to_vector<float>(), testing::Each(3));
  EXPECT_TRUE(scaler.step(optimizer));
  scaler.update();
  Tensor bad = Tensor::full({4, 3}, 6);
  narrow(narrow(bad, 0, 3, 1), 1, 2, 1).fill_(kInfinity);
  Tensor(param).set_grad(transpose(bad, 0, 1));
  EXPECT_FALSE(scaler.step(optimizer));
}

TEST(GradScaler, ALossInF16IsScaledInF32) {
  const Tensor loss = Tensor::full({}, 100, {f16});
  const GradScaler scaler;
  EXPECT_EQ(scaler.scale(loss).dtype(), f32);
  EXPECT_EQ(scaler.scale(loss).item(), 6553600);
  EXPECT_EQ(scaler.scale(loss.to(f64)).dtype(), f64);
}

TEST(GradScaler, SmallGradientsSurviveF16OnlyWhenScaled) {
  // 2^-26 is zero in f16; times 2^16 it is not.
  const auto train = [](bool enabled) {
    const Tensor param = Tensor::full({4}, 1, {.dtype = f16, .requires_grad = true});
    SGD optimizer({param}, {.lr = 0x1p20});
    GradScaler scaler({.enabled = enabled});
    scaler.scale(mul(sum(param).to(f32), 0x1p-26)).backward();
    scaler.step(optimizer);
    return param.detach().to_vector<float>()[0];
  };
  EXPECT_EQ(train(false), 1);
  EXPECT_EQ(train(true), 1 - 0x1p-6f);
}

TEST(GradScaler, SeveralOptimizersAreLookedAtEachOnItsOwn) {
  const Tensor good = parameter({2});
  const Tensor bad = parameter({2});
  SGD first({good});
  SGD second({bad});
  GradScaler scaler;
  set_gradient(good, 1);
  set_gradient(bad, kInfinity);
  EXPECT_TRUE(scaler.step(first));
  EXPECT_FALSE(scaler.step(second));
  scaler.update();
  EXPECT_EQ(scaler.get_scale(), 32768) << "one overflow counts";
}

TEST(GradScaler, DisabledItPassesEverythingThrough) {
  const Tensor param = parameter({2});
  SGD optimizer({param});
  GradScaler scaler({.enabled = false});
  const Tensor loss = Tensor::ones({});
  EXPECT_TRUE(scaler.scale(loss).is_same(loss));
  EXPECT_EQ(scaler.get_scale(), 1);
  set_gradient(param, kInfinity);
  scaler.unscale_(optimizer);
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_TRUE(scaler.step(optimizer));
  EXPECT_NO_THROW(scaler.update());
  EXPECT_FALSE(std::isfinite(param.detach().to_vector<float>()[0]));
}

TEST(GradScaler, CallsInAnotherOrderAreErrors) {
  const Tensor param = parameter({2});
  SGD optimizer({param});
  GradScaler scaler;
  const auto refused = [](auto&& call) { return message_of<InvalidArgument>(call); };
  EXPECT_THAT(refused([&] { scaler.update(); }), HasSubstr("update() without a step()"));
  EXPECT_THAT(refused([&] { scaler.step(optimizer); }), HasSubstr("no parameter"));
  EXPECT_THAT(refused([&] { scaler.unscale_(optimizer); }), HasSubstr("no parameter"));
  EXPECT_THAT(refused([&] { scaler.update(); }), HasSubstr("update() without a step()"));
  set_gradient(param, 1);
  scaler.unscale_(optimizer);
  EXPECT_THAT(refused([&] { scaler.unscale_(optimizer); }), HasSubstr("unscale_() was called"));
  scaler.step(optimizer);
  EXPECT_THAT(refused([&] { scaler.step(optimizer); }), HasSubstr("step() was called"));
  EXPECT_THAT(refused([&] { scaler.unscale_(optimizer); }), HasSubstr("comes after step()"));
  EXPECT_EQ(optimizer.step_count(param), 1);
  scaler.update();
  EXPECT_NO_THROW(scaler.step(optimizer));

  const Tensor half = parameter({2}, f16);
  SGD halves({half});
  set_gradient(half, 1);
  EXPECT_THAT(message_of<DTypeError>([&] { scaler.unscale_(halves); }), HasSubstr("f16"));
}

TEST(GradScaler, OptionsAndStatesThatCannotBeRight) {
  for (const GradScalerOptions& options : {GradScalerOptions{.init_scale = 0},
                                           {.init_scale = kInfinity},
                                           {.init_scale = std::nan("")},
                                           {.growth_factor = 1},
                                           {.growth_factor = std::nan("")},
                                           {.backoff_factor = 1},
                                           {.backoff_factor = 0},
                                           {.growth_interval = 0}}) {
    EXPECT_THROW(GradScaler{options}, InvalidArgument);
  }
  GradScaler scaler;
  EXPECT_THROW(scaler.update(-1.0), InvalidArgument);
  EXPECT_THROW(scaler.load_state({0, 1}), InvalidArgument);
  EXPECT_THROW(scaler.load_state({1, -1}), InvalidArgument);
  EXPECT_EQ(scaler.get_scale(), 65536);
}

TEST(GradScaler, ALoadedStateContinuesTheCount) {
  const Tensor param = parameter({2});
  SGD optimizer({param});
  GradScaler first({.growth_interval = 2});
  set_gradient(param, 1);
  first.step(optimizer);
  first.update();
  first.update(16.0);
  GradScaler second({.growth_interval = 2});
  second.load_state(first.state());
  EXPECT_EQ(second.get_scale(), 16);
  second.step(optimizer);
  second.update();
  EXPECT_EQ(second.get_scale(), 32);
}

}  // namespace
}  // namespace cohort::optim
