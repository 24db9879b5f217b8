#include "cohort/nn/init.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/nn/conv.h"
#include "cohort/nn/embedding.h"
#include "cohort/nn/linear.h"
#include "cohort/nn/sequential.h"

namespace cohort::nn {
namespace {

struct Moments {
  double mean = 0;
  double deviation = 0;
  double largest = 0;  // by magnitude
};

Moments moments(const Tensor& tensor) {
  Moments result;
  const std::vector<double> values = tensor.to_vector<double>();
  const auto count = static_cast<double>(values.size());
  for (const double value : values) {
    result.mean += value / count;
    result.largest = std::max(result.largest, std::abs(value));
  }
  for (const double value : values) result.deviation += std::pow(value - result.mean, 2) / count;
  result.deviation = std::sqrt(result.deviation);
  return result;
}

// A uniform distribution over +-bound: 200 x 200 numbers come within 1 % of the bound and of its
// deviation bound / sqrt(3), and their mean within 4 standard errors.
void expect_uniform(const Tensor& tensor, double bound) {
  const Moments m = moments(tensor);
  EXPECT_LE(m.largest, bound * (1 + 1e-6));
  EXPECT_GE(m.largest, bound * 0.99);
  EXPECT_NEAR(m.deviation, bound / std::sqrt(3), bound * 0.01);
  EXPECT_NEAR(m.mean, 0, 4 * m.deviation / std::sqrt(tensor.numel()));
}

void expect_normal(const Tensor& tensor, double deviation) {
  const Moments m = moments(tensor);
  EXPECT_NEAR(m.deviation, deviation, deviation * 0.02);
  EXPECT_NEAR(m.mean, 0, 4 * deviation / std::sqrt(tensor.numel()));
  EXPECT_GT(m.largest, 3.5 * deviation);
}

class Init : public testing::Test {
 protected:
  void SetUp() override { manual_seed(1); }
};

TEST_F(Init, KaimingFollowsTheFanAndTheGain) {
  const Tensor tensor = Tensor::empty({100, 400});
  init::kaiming_uniform_(tensor, {.a = 0.5});
  expect_uniform(tensor, std::sqrt(2 / 1.25) * std::sqrt(3.0 / 400));
  init::kaiming_uniform_(
      tensor, {.mode = init::FanMode::fan_out, .nonlinearity = init::Nonlinearity::relu});
  expect_uniform(tensor, std::sqrt(2.0) * std::sqrt(3.0 / 100));
  init::kaiming_normal_(tensor, {.nonlinearity = init::Nonlinearity::tanh});
  expect_normal(tensor, 5.0 / 3 / std::sqrt(400));
}

TEST_F(Init, XavierFollowsBothFans) {
  const Tensor tensor = Tensor::empty({100, 100, 2, 2});
  init::xavier_uniform_(tensor, 2);
  expect_uniform(tensor, 2 * std::sqrt(6.0 / 800));
  init::xavier_normal_(tensor);
  expect_normal(tensor, std::sqrt(2.0 / 800));
}

TEST_F(Init, FansCountTheKernel) {
  const init::Fans fans = init::fans_of(Tensor::empty({6, 4, 3, 5}));
  EXPECT_EQ(fans.in, 60);
  EXPECT_EQ(fans.out, 90);
  EXPECT_THROW(init::fans_of(Tensor::empty({6})), ShapeError);
}

TEST_F(Init, ConstantsFillATensorThatRequiresAGradient) {
  const Tensor tensor = Tensor::empty({3}, {.requires_grad = true});
  init::constant_(tensor, 2.5);
  EXPECT_THAT(tensor.to_vector<float>(), testing::Each(2.5f));
  EXPECT_TRUE(tensor.is_leaf());
}

TEST_F(Init, RefusesBadArguments) {
  EXPECT_THROW(init::uniform_(Tensor::empty({2}), 1, 0), InvalidArgument);
  EXPECT_THROW(init::normal_(Tensor::empty({2}), 0, -1), InvalidArgument);
  EXPECT_THROW(init::uniform_(Tensor::empty({2}, {.dtype = i64})), DTypeError);
}

TEST_F(Init, LayersStartWithPyTorchsDistributions) {
  const Linear linear(100, 400);
  expect_uniform(linear.weight, 0.1);
  EXPECT_LE(moments(linear.bias).largest, 0.1);
  EXPECT_GT(moments(linear.bias).deviation, 0.05);
  const Conv2d conv(50, 100, 4, {.groups = 2});
  expect_uniform(conv.weight, 1 / std::sqrt(25 * 16));
  EXPECT_LE(moments(conv.bias).largest, 1 / std::sqrt(25 * 16));
  expect_normal(Embedding(200, 200).weight, 1);
}

TEST_F(Init, EqualSeedsGiveEqualModelsOnEveryRank) {
  std::vector<std::vector<float>> weights;
  for (const int rank : {0, 1}) {
    Context context(Runtime::make({.rank = rank}));
    const ContextScope scope(context);
    manual_seed(5);
    weights.push_back(Linear(10, 10).weight.to_vector<float>());
  }
  EXPECT_EQ(weights[0], weights[1]);
}

TEST_F(Init, ADeferredModelGetsTheValuesItWouldHaveHadAtOnce) {
  manual_seed(9);
  Sequential eager{Linear(8, 8), Linear(8, 2)};
  manual_seed(9);
  const LinearOptions on_meta{.device = Device::meta()};
  Sequential deferred{Linear(8, 8, on_meta), Linear(8, 2, on_meta)};
  const std::vector<Tensor> handles = deferred.parameters();
  deferred.to_empty(Device::cpu());
  deferred.apply([](Module& module) { module.reset_parameters(); });
  for (std::size_t i = 0; i < handles.size(); ++i) {
    EXPECT_EQ(handles[i].to_vector<float>(), eager.parameters()[i].to_vector<float>()) << i;
  }
}

}  // namespace
}  // namespace cohort::nn
