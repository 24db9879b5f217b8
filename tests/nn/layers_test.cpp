#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/nn/nn.h"

namespace cohort::nn {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::vector<std::string> names(const Module& module) {
  std::vector<std::string> result;
  for (const NamedTensor& entry : module.named_state()) {
    result.push_back(str(entry.name, entry.tensor.shape()));
  }
  return result;
}

TEST(Layers, HavePyTorchsParameterNamesAndShapes) {
  EXPECT_THAT(names(Linear(3, 2)), ElementsAre("weight[2, 3]", "bias[2]"));
  EXPECT_THAT(names(Linear(3, 2, {.bias = false})), ElementsAre("weight[2, 3]"));
  EXPECT_THAT(names(Conv2d(4, 6, {3, 5}, {.groups = 2})),
              ElementsAre("weight[6, 2, 3, 5]", "bias[6]"));
  EXPECT_THAT(names(BatchNorm2d(5)), ElementsAre("weight[5]", "bias[5]", "running_mean[5]",
                                                 "running_var[5]", "num_batches_tracked[]"));
  EXPECT_THAT(names(BatchNorm1d(5, {.affine = false, .track_running_stats = false})),
              ElementsAre());
  EXPECT_THAT(names(LayerNorm({4, 3})), ElementsAre("weight[4, 3]", "bias[4, 3]"));
  EXPECT_THAT(names(LayerNorm(4, {.bias = false})), ElementsAre("weight[4]"));
  EXPECT_THAT(names(Embedding(7, 2)), ElementsAre("weight[7, 2]"));
}

TEST(Layers, CountTheirMemoryAsParameters) {
  Context context(Runtime::make());
  const ContextScope scope(context);
  const Linear linear(64, 32);
  const BatchNorm1d norm(16);
  const MemoryStats stats = memory_stats();
  const std::int64_t bytes = (64 * 32 + 32 + 4 * 16) * 4 + 64;
  EXPECT_EQ(stats.live[static_cast<std::size_t>(MemoryCategory::parameters)], bytes);
  EXPECT_EQ(stats.live_total, bytes);
}

struct WrongInput {
  const char* name;
  std::function<std::shared_ptr<Layer>()> make;
  Shape shape;
  const char* message;
};

class LayerShapes : public testing::TestWithParam<WrongInput> {};

TEST_P(LayerShapes, AWrongInputIsAnErrorThatShowsBothShapes) {
  const auto layer = GetParam().make();
  const Tensor x = Tensor::zeros(GetParam().shape);
  try {
    (*layer)(x);
    ADD_FAILURE() << "no error";
  } catch (const ShapeError& error) {
    EXPECT_THAT(error.what(), HasSubstr(GetParam().message));
    EXPECT_THAT(error.what(), HasSubstr(str(x.shape())));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, LayerShapes,
    testing::Values(WrongInput{"linear",
                               [] { return std::make_shared<Linear>(784, 10); },
                               {5, 100},
                               "[Linear] expects [.., 784]"},
                    WrongInput{"linear_scalar",
                               [] { return std::make_shared<Linear>(784, 10); },
                               {},
                               "[Linear] expects [.., 784]"},
                    WrongInput{"conv_channels",
                               [] { return std::make_shared<Conv2d>(3, 4, 3); },
                               {2, 1, 8, 8},
                               "[Conv2d] expects [N, 3, H, W]"},
                    WrongInput{"conv_rank",
                               [] { return std::make_shared<Conv2d>(3, 4, 3); },
                               {3, 8, 8},
                               "[Conv2d] expects [N, 3, H, W]"},
                    WrongInput{"batch_norm_1d",
                               [] { return std::make_shared<BatchNorm1d>(3); },
                               {2, 4},
                               "[BatchNorm1d] expects [N, 3]"},
                    WrongInput{"batch_norm_2d",
                               [] { return std::make_shared<BatchNorm2d>(3); },
                               {2, 3},
                               "[BatchNorm2d] expects [N, 3, H, W]"},
                    WrongInput{"layer_norm",
                               [] {
                                 return std::make_shared<LayerNorm>(Shape{3, 4});
                               },
                               {2, 4, 3},
                               "[LayerNorm] expects the last sizes to be [3, 4]"}),
    [](const auto& info) { return std::string(info.param.name); });

TEST(Layers, RefuseOptionsThatCannotBeRight) {
  EXPECT_THROW(Linear(0, 3), InvalidArgument);
  EXPECT_THROW(Linear(3, -1), InvalidArgument);
  EXPECT_THROW(Conv2d(3, 4, 0), InvalidArgument);
  EXPECT_THROW(Conv2d(3, 4, 3, {.groups = 2}), InvalidArgument);
  EXPECT_THROW(BatchNorm1d(0), InvalidArgument);
  EXPECT_THROW(BatchNorm1d(3, {.momentum = 1.5}), InvalidArgument);
  EXPECT_THROW(LayerNorm(Shape{}), ShapeError);
  EXPECT_THROW(Embedding(0, 3), InvalidArgument);
  EXPECT_THROW(Dropout(1.5), InvalidArgument);
  EXPECT_THROW(Linear(2, 2, {.dtype = i32}), DTypeError);
}

TEST(Layers, EmbeddingRefusesFractionalIndices) {
  Embedding layer(3, 2);
  EXPECT_THROW(layer(Tensor::zeros({2})), DTypeError);
}

TEST(Linear, ComputesXTimesTheTransposedWeightPlusBias) {
  Linear layer(2, 1);
  {
    const NoGrad no_grad;
    layer.weight.copy_(Tensor::from({2.f, 3.f}, {1, 2}));
    layer.bias.fill_(0.5);
  }
  const Tensor y = layer(Tensor::from({1.f, 10.f, 2.f, 20.f}, {2, 2}));
  EXPECT_THAT(y.to_vector<float>(), ElementsAre(32.5f, 64.5f));
}

TEST(BatchNorm, TracksStatisticsInTrainingAndUsesThemInEvaluation) {
  BatchNorm1d layer(1);
  const Tensor x = Tensor::from({1.f, 3.f}, {2, 1});
  layer(x);
  EXPECT_EQ(layer.num_batches_tracked.item<std::int64_t>(), 1);
  EXPECT_FLOAT_EQ(layer.running_mean.item<float>(), 0.2f);
  EXPECT_FLOAT_EQ(layer.running_var.item<float>(), 0.9f + 0.1f * 2);
  layer.eval();
  const Tensor y = layer(x);
  EXPECT_EQ(layer.num_batches_tracked.item<std::int64_t>(), 1);
  EXPECT_NEAR(y.to_vector<float>()[0], (1 - 0.2) / std::sqrt(1.1 + 1e-5), 1e-6);
  layer.reset_parameters();
  EXPECT_EQ(layer.running_mean.item<float>(), 0);
  EXPECT_EQ(layer.num_batches_tracked.item<std::int64_t>(), 0);
}

TEST(BatchNorm, TakesSequencesAsTheSameChannels) {
  BatchNorm1d layer(2);
  const Tensor x = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f, 7.f, 8.f}, {2, 2, 2});
  const Tensor y = layer(x);
  EXPECT_EQ(y.shape(), x.shape());
  // Channel 0 holds 1, 2, 5, 6: mean 3.5, variance 4.25.
  EXPECT_NEAR(y.to_vector<float>()[0], (1 - 3.5) / std::sqrt(4.25 + 1e-5), 1e-5);
}

TEST(BatchNorm, UsesTheBatchInEvaluationWhenNothingIsTracked) {
  BatchNorm1d layer(1, {.track_running_stats = false});
  layer.eval();
  const Tensor y = layer(Tensor::from({1.f, 3.f}, {2, 1}));
  EXPECT_NEAR(y.to_vector<float>()[0], -1, 1e-4);
}

TEST(Dropout, DropsInTrainingOnly) {
  Dropout layer(0.5);
  const Tensor x = Tensor::ones({1000});
  double kept = 0;
  for (const float value : layer(x).to_vector<float>()) {
    EXPECT_TRUE(value == 0 || value == 2);
    kept += value / 2;
  }
  EXPECT_NEAR(kept, 500, 100);
  layer.eval();
  EXPECT_THAT(layer(x).to_vector<float>(), testing::Each(1));
}

TEST(Activations, ApplyTheirFunctions) {
  const Tensor x = Tensor::from({-1.f, 0.f, 2.f}, {3});
  EXPECT_THAT(ReLU()(x).to_vector<float>(), ElementsAre(0, 0, 2));
  EXPECT_NEAR(Tanh()(x).to_vector<float>()[2], std::tanh(2.0), 1e-6);
  EXPECT_NEAR(Sigmoid()(x).to_vector<float>()[0], 1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(SiLU()(x).to_vector<float>()[0], -1 / (1 + std::exp(1.0)), 1e-6);
  EXPECT_NEAR(GELU()(x).to_vector<float>()[2], 1.954499736, 1e-6);
  EXPECT_NEAR(GELU({.approximate = GeluApproximate::tanh})(x).to_vector<float>()[2], 1.954597694,
              1e-6);
  const std::vector<float> shares = Softmax(0)(x).to_vector<float>();
  EXPECT_NEAR(shares[0] + shares[1] + shares[2], 1, 1e-6);
}

TEST(Pooling, HasTheKernelsSizeForItsDefaultStride) {
  const Tensor x = Tensor::from({1.f, 2.f, 3.f, 4.f}, {1, 1, 2, 2});
  EXPECT_THAT(MaxPool2d(2)(x).to_vector<float>(), ElementsAre(4));
  EXPECT_THAT(AvgPool2d(2)(x).to_vector<float>(), ElementsAre(2.5));
  EXPECT_THAT(MaxPool2d(1)(x).to_vector<float>(), ElementsAre(1, 2, 3, 4));
}

TEST(Sequential, RunsLayersInOrderUnderTheirNumbers) {
  Sequential net{Flatten(), Linear(4, 3), std::make_shared<ReLU>(),
                 Sequential{Linear(3, 2), Tanh()}};
  EXPECT_EQ(net.size(), 4u);
  std::vector<std::string> parameters;
  for (const NamedTensor& entry : net.named_parameters()) parameters.push_back(entry.name);
  EXPECT_THAT(parameters, ElementsAre("1.weight", "1.bias", "3.0.weight", "3.0.bias"));
  const Tensor x = Tensor::ones({5, 2, 2});
  const Tensor y = net(x);
  EXPECT_EQ(y.shape(), (Shape{5, 2}));
  Tensor step = x;
  for (std::size_t i = 0; i < net.size(); ++i) step = net[i](step);
  EXPECT_EQ(y.to_vector<float>(), step.to_vector<float>());
  EXPECT_THROW(net[4], InvalidArgument);
}

TEST(Sequential, IsMadeFromBracesOrArgumentsAndMovedIntoASharedPointer) {
  Sequential braces = {Linear(4, 3), ReLU()};
  const auto moved = std::make_shared<Sequential>(std::move(braces));
  const auto arguments = std::make_shared<Sequential>(Linear(4, 3), ReLU());
  for (const auto& net : {moved, arguments}) {
    EXPECT_EQ(net->size(), 2u);
    EXPECT_EQ(net->named_parameters().front().name, "0.weight");
  }
  EXPECT_EQ(Sequential{std::make_shared<ReLU>()}.size(), 1u);
  static_assert(!std::is_constructible_v<Sequential, int>);
  static_assert(!std::is_constructible_v<Sequential, Linear&>, "a layer is moved in, not copied");
}

TEST(Sequential, RunsTheHooksOfItsLayers) {
  Sequential net{ReLU(), Tanh()};
  int runs = 0;
  net[1].register_forward_pre_hook([&](Module&, std::span<Tensor>) { ++runs; });
  net(Tensor::ones({1}));
  EXPECT_EQ(runs, 1);
}

TEST(Sequential, WithoutLayersReturnsItsInput) {
  Sequential net;
  const Tensor x = Tensor::ones({1});
  EXPECT_TRUE(net(x).is_same(x));
}

TEST(ModuleList, NamesItsModulesByNumber) {
  ModuleList<Linear> list;
  list.append(std::make_shared<Linear>(2, 3)).append(std::make_shared<Linear>(3, 1));
  EXPECT_THAT(names(list),
              ElementsAre("0.weight[3, 2]", "0.bias[3]", "1.weight[1, 3]", "1.bias[1]"));
  Tensor x = Tensor::ones({1, 2});
  for (const auto& layer : list) x = (*layer)(x);
  EXPECT_EQ(x.shape(), (Shape{1, 1}));
  EXPECT_THROW(list[2], InvalidArgument);
}

}  // namespace
}  // namespace cohort::nn
