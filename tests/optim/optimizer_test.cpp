#include "cohort/optim/optimizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "support/reference.h"

namespace cohort::optim {
namespace {

using test::same_bits;
using testing::ElementsAre;
using testing::HasSubstr;

Tensor parameter(const Shape& shape, double value = 1, DType dtype = f32) {
  return Tensor::full(shape, value, {.dtype = dtype, .requires_grad = true});
}

void set_gradient(Tensor param, double value) {
  param.set_grad(Tensor::full(param.shape(), value, param.options()));
}

std::string error_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

// Parameters, and gradients at the same places, in two flat buffers: the layout of an FSDP unit.
struct Flat {
  // Each parameter begins `stride` elements behind the one before.
  Flat(int count, std::int64_t size, std::int64_t stride, bool padded) {
    values = Tensor::zeros({count * stride});
    gradients = Tensor::zeros({count * stride});
    if (padded) {
      values.storage().set_padded_slots();
      gradients.storage().set_padded_slots();
    }
    for (int i = 0; i < count; ++i) {
      Tensor param = values.as_strided({size}, {1}, i * stride);
      param.fill_(i + 1);
      param.set_requires_grad(true);
      Tensor gradient = gradients.as_strided({size}, {1}, i * stride);
      gradient.fill_(0.5 * (i + 1));
      param.set_grad(gradient);
      params.push_back(param);
    }
  }
  Tensor values;
  Tensor gradients;
  std::vector<Tensor> params;
};

// The same values, each parameter and gradient in memory of its own.
std::vector<Tensor> apart(const Flat& flat) {
  std::vector<Tensor> params;
  for (const Tensor& given : flat.params) {
    Tensor param = Tensor::from(given.to_vector<float>(), given.shape());
    param.set_requires_grad(true);
    param.set_grad(Tensor::from(given.grad().to_vector<float>(), given.shape()));
    params.push_back(param);
  }
  return params;
}

std::unique_ptr<Optimizer> make(const std::string& kind, const std::vector<Tensor>& params) {
  if (kind == "sgd") return std::make_unique<SGD>(params, SGDOptions{.lr = 0.1, .momentum = 0.9});
  if (kind == "adam") return std::make_unique<Adam>(params, AdamOptions{.amsgrad = true});
  return std::make_unique<AdamW>(params);
}

class Fusion : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Kinds, Fusion, testing::Values("sgd", "adam", "adamw"));

TEST_P(Fusion, NeighboursAreUpdatedAsOneRangeWithTheBitsOfSeparateOnes) {
  const Flat flat(5, 16, 16, false);
  const std::vector<Tensor> separate = apart(flat);
  const auto fused = make(GetParam(), flat.params);
  const auto plain = make(GetParam(), separate);
  for (int step = 0; step < 3; ++step) {
    fused->step();
    plain->step();
    EXPECT_EQ(fused->fused_ranges(), 1);
    EXPECT_EQ(plain->fused_ranges(), 5);
    for (std::size_t i = 0; i < separate.size(); ++i) {
      EXPECT_TRUE(same_bits(flat.params[i].detach(), separate[i].detach())) << i;
    }
  }
}

TEST_P(Fusion, PaddingIsSpannedOnlyWhereItIsPromisedAndStaysZero) {
  const Flat promised(4, 13, 16, true);
  const Flat unknown(4, 13, 16, false);
  const auto spanning = make(GetParam(), promised.params);
  const auto careful = make(GetParam(), unknown.params);
  for (int step = 0; step < 3; ++step) {
    spanning->step();
    careful->step();
    EXPECT_EQ(spanning->fused_ranges(), 1);
    EXPECT_EQ(careful->fused_ranges(), 4);
    EXPECT_TRUE(same_bits(promised.values, unknown.values));
  }
  const std::vector<float> values = promised.values.to_vector<float>();
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (i % 16 >= 13) {
      EXPECT_EQ(values[i], 0) << i;
    }
  }
}

TEST_P(Fusion, AForeignTensorBetweenTwoParametersIsLeftAlone) {
  const Flat flat(3, 4, 4, false);
  const auto optimizer = make(GetParam(), {flat.params[0], flat.params[2]});
  optimizer->step();
  EXPECT_EQ(optimizer->fused_ranges(), 2);
  EXPECT_THAT(flat.params[1].detach().to_vector<float>(), testing::Each(2));
}

TEST_P(Fusion, AParameterWithoutGradientSplitsTheRangeAndIsSkipped) {
  const Flat flat(3, 16, 16, true);
  Tensor skipped = flat.params[1];
  skipped.set_grad({});
  const auto optimizer = make(GetParam(), flat.params);
  optimizer->step();
  EXPECT_EQ(optimizer->fused_ranges(), 2);
  EXPECT_EQ(optimizer->step_count(skipped), 0);
  EXPECT_TRUE(optimizer->state(skipped).empty());
  EXPECT_THAT(skipped.detach().to_vector<float>(), testing::Each(2));
  // Later it takes part with a step count of its own.
  skipped.set_grad(flat.gradients.as_strided({16}, {1}, 16));
  optimizer->step();
  EXPECT_EQ(optimizer->step_count(skipped), 1);
  EXPECT_EQ(optimizer->step_count(flat.params[0]), 2);
}

TEST_P(Fusion, GradientsInAnotherOrderAreNotFused) {
  Flat flat(2, 16, 16, false);
  const Tensor first = flat.params[0].grad();
  const Tensor second = flat.params[1].grad();
  flat.params[0].set_grad(second);
  flat.params[1].set_grad(first);
  const std::vector<Tensor> separate = apart(flat);
  const auto optimizer = make(GetParam(), flat.params);
  const auto plain = make(GetParam(), separate);
  optimizer->step();
  plain->step();
  EXPECT_EQ(optimizer->fused_ranges(), 2);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(same_bits(flat.params[i].detach(), separate[i].detach()));
  }
}

TEST(Optimizer, PaddingIsNotSpannedWhenZerosWouldNotStay) {
  const Flat flat(3, 13, 16, true);
  Adam optimizer(flat.params, {.eps = 0});
  optimizer.step();
  EXPECT_EQ(optimizer.fused_ranges(), 3);
  EXPECT_EQ(flat.values.to_vector<float>()[13], 0);
}

TEST(Optimizer, SkipsParametersWithoutGradient) {
  const Tensor with = parameter({2});
  const Tensor without = parameter({2});
  SGD optimizer({with, without}, {.lr = 1});
  set_gradient(with, 0.25);
  optimizer.step();
  EXPECT_THAT(with.detach().to_vector<float>(), ElementsAre(0.75, 0.75));
  EXPECT_THAT(without.detach().to_vector<float>(), ElementsAre(1, 1));
}

TEST(Optimizer, GroupsHaveTheirOwnOptionsAndLearningRates) {
  const Tensor a = parameter({1});
  const Tensor b = parameter({1});
  const Tensor c = parameter({1});
  SGD optimizer({ParamGroup<SGDOptions>{{a}}, {{b}, SGDOptions{.lr = 0.5}}}, {.lr = 0.1});
  optimizer.add_param_group({{c}, SGDOptions{.lr = 0.25, .weight_decay = 1}});
  ASSERT_EQ(optimizer.group_count(), 3u);
  EXPECT_EQ(optimizer.lr(0), 0.1);
  EXPECT_EQ(optimizer.lr(1), 0.5);
  optimizer.set_lr(1, 1);
  for (const Tensor& param : optimizer.parameters()) set_gradient(param, 1);
  optimizer.step();
  EXPECT_FLOAT_EQ(a.detach().item<float>(), 0.9f);
  EXPECT_FLOAT_EQ(b.detach().item<float>(), 0);
  EXPECT_FLOAT_EQ(c.detach().item<float>(), 1 - 0.25f * 2);
  EXPECT_EQ(optimizer.parameters(2).size(), 1u);
  EXPECT_THROW(optimizer.lr(3), InvalidArgument);
  EXPECT_THROW(optimizer.set_lr(-1), InvalidArgument);
  EXPECT_EQ(optimizer.lr(0), 0.1);
}

TEST(Optimizer, ReadsGradientsTimesTheScale) {
  const Tensor a = parameter({3});
  const Tensor b = parameter({3});
  SGD scaled({a}, {.lr = 1, .momentum = 0.5, .weight_decay = 0.125});
  SGD plain({b}, {.lr = 1, .momentum = 0.5, .weight_decay = 0.125});
  for (int step = 0; step < 3; ++step) {
    set_gradient(a, 8);
    set_gradient(b, 2);
    scaled.step(0.25);
    plain.step();
    EXPECT_TRUE(same_bits(a.detach(), b.detach()));
    EXPECT_THAT(a.grad().to_vector<float>(), testing::Each(8));
  }
}

TEST(Optimizer, ClearsOrZeroesGradients) {
  const Tensor param = parameter({2});
  SGD optimizer({param});
  set_gradient(param, 3);
  optimizer.zero_grad(/*set_to_none=*/false);
  EXPECT_THAT(param.grad().to_vector<float>(), ElementsAre(0, 0));
  optimizer.zero_grad();
  EXPECT_FALSE(param.grad().defined());
}

TEST(Optimizer, CountsStateUnderItsCategoryFromTheFirstStep) {
  Context context(Runtime::make());
  const ContextScope scope(context);
  const auto live = [] {
    return memory_stats().live[static_cast<std::size_t>(MemoryCategory::optimizer)];
  };
  const Tensor param = parameter({100});
  AdamW optimizer({param});
  EXPECT_EQ(live(), 0);
  set_gradient(param, 1);
  optimizer.step();
  // exp_avg and exp_avg_sq, 400 bytes rounded up to 448 each.
  EXPECT_EQ(live(), 2 * 448);
  const std::vector<NamedState> state = optimizer.state(param);
  ASSERT_EQ(state.size(), 2u);
  EXPECT_EQ(state[0].name, "exp_avg");
  EXPECT_EQ(state[1].name, "exp_avg_sq");
  EXPECT_NEAR(state[0].tensor.to_vector<float>()[0], 0.1, 1e-7);
}

TEST(Optimizer, SgdWithoutMomentumHasNoState) {
  const Tensor param = parameter({4});
  SGD optimizer({param});
  set_gradient(param, 1);
  optimizer.step();
  EXPECT_TRUE(optimizer.state(param).empty());
  EXPECT_EQ(optimizer.step_count(param), 1);
}

TEST_P(Fusion, LoadedStateContinuesAsIfNeverInterrupted) {
  const Flat run(3, 16, 16, false);
  const Flat resumed(3, 16, 16, false);
  const auto first = make(GetParam(), run.params);
  first->step();
  first->step();
  const auto second = make(GetParam(), resumed.params);
  for (std::size_t i = 0; i < 3; ++i) {
    const NoGrad no_grad;
    Tensor(resumed.params[i]).copy_(run.params[i]);
    second->load_state(resumed.params[i], first->step_count(run.params[i]),
                       first->state(run.params[i]));
  }
  first->step();
  second->step();
  EXPECT_EQ(second->fused_ranges(), 1);
  EXPECT_TRUE(same_bits(run.values, resumed.values));
}

TEST(Optimizer, RefusesStateThatDoesNotFit) {
  const Tensor param = parameter({4});
  const Tensor zeros = Tensor::zeros({4});
  Adam optimizer({param});
  EXPECT_THAT(error_text([&] {
                optimizer.load_state(param, 1, {{"exp_avg", zeros}});
              }),
              HasSubstr("1 tensors given, 2 wanted"));
  EXPECT_THAT(error_text([&] {
                optimizer.load_state(param, 1, {{"exp_avg", zeros}, {"momentum", zeros}});
              }),
              HasSubstr("'exp_avg_sq' is missing"));
  EXPECT_THAT(
      error_text([&] {
        optimizer.load_state(param, 1, {{"exp_avg", zeros}, {"exp_avg_sq", Tensor::zeros({5})}});
      }),
      HasSubstr("'exp_avg_sq' has shape [5]"));
  EXPECT_THROW(optimizer.state(zeros), InvalidArgument);
  EXPECT_TRUE(optimizer.state(param).empty());
  EXPECT_EQ(optimizer.state_names_of(param), (std::vector<std::string>{"exp_avg", "exp_avg_sq"}))
      << "known before the first step";
  EXPECT_THROW(optimizer.state_names_of(zeros), InvalidArgument);
}

TEST(Optimizer, RefusesParametersThatItCannotTrain) {
  EXPECT_THAT(error_text([] { SGD(std::vector<Tensor>{}); }), HasSubstr("empty"));
  EXPECT_THAT(error_text([] { SGD({Tensor()}); }), HasSubstr("parameter 0 is undefined"));
  EXPECT_THAT(error_text([] {
                SGD({parameter({2}), Tensor::zeros({3}, {.dtype = i64})});
              }),
              HasSubstr("parameter 1 of shape [3] is i64"));
  const Tensor twice = parameter({2});
  EXPECT_THAT(error_text([&] { SGD({twice, twice}); }), HasSubstr("occurs twice"));
  EXPECT_THAT(error_text([&] {
                SGD({twice.as_strided({2, 1}, {1, 2}, 0), twice});
              }),
              HasSubstr("no error"));
  EXPECT_THAT(error_text([] {
                SGD({Tensor::zeros({2, 3}).as_strided({3, 2}, {1, 3}, 0)});
              }),
              HasSubstr("not contiguous"));
  SGD optimizer({twice});
  EXPECT_THAT(error_text([&] { optimizer.add_param_group({{twice}}); }), HasSubstr("occurs twice"));
  EXPECT_EQ(optimizer.group_count(), 1u);
}

TEST(Optimizer, AStepIsSeenByTheGraphThatSavedTheParameter) {
  const Tensor param = parameter({2});
  const std::uint32_t version = param.storage().version();
  SGD optimizer({param});
  set_gradient(param, 1);
  optimizer.step();
  EXPECT_GT(param.storage().version(), version);
}

TEST(Optimizer, RefusesOptionsThatCannotBeRight) {
  const std::vector<Tensor> params{parameter({1})};
  EXPECT_THROW(SGD(params, {.lr = -1}), InvalidArgument);
  EXPECT_THROW(SGD(params, {.lr = std::nan("")}), InvalidArgument);
  EXPECT_THROW(SGD(params, {.momentum = -0.1}), InvalidArgument);
  EXPECT_THROW(SGD(params, {.weight_decay = -0.1}), InvalidArgument);
  EXPECT_THROW(SGD(params, {.nesterov = true}), InvalidArgument);
  EXPECT_THROW(SGD(params, {.momentum = 0.9, .dampening = 0.1, .nesterov = true}), InvalidArgument);
  EXPECT_THROW(Adam(params, {.lr = -1}), InvalidArgument);
  EXPECT_THROW(Adam(params, {.betas = {1, 0.9}}), InvalidArgument);
  EXPECT_THROW(Adam(params, {.betas = {0.9, -0.1}}), InvalidArgument);
  EXPECT_THROW(Adam(params, {.eps = -1e-8}), InvalidArgument);
  EXPECT_THROW(AdamW(params, {.weight_decay = -1}), InvalidArgument);
}

TEST(Optimizer, SaysThatItIsElementWise) {
  EXPECT_TRUE(SGD({parameter({1})}).element_wise());
  EXPECT_TRUE(Adam({parameter({1})}).element_wise());
  EXPECT_TRUE(AdamW({parameter({1})}).element_wise());
}

}  // namespace
}  // namespace cohort::optim
