#include "cohort/models/models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/nn/functional.h"
#include "cohort/optim/sgd.h"

namespace cohort::models {
namespace {

using testing::ElementsAre;
namespace F = nn::functional;

std::vector<std::string> parameter_names(const nn::Module& model) {
  std::vector<std::string> names;
  for (const auto& entry : model.named_parameters()) {
    names.push_back(str(entry.name, entry.tensor.shape()));
  }
  return names;
}

TEST(Models, AnMlpHasTheWidthsOfItsSpec) {
  auto model = make_mlp("6-5-3");
  EXPECT_THAT(parameter_names(*model),
              ElementsAre("1.weight[5, 6]", "1.bias[5]", "3.weight[3, 5]", "3.bias[3]"));
  EXPECT_EQ((*model)(Tensor::zeros({4, 1, 2, 3})).shape(), (Shape{4, 3}));
  EXPECT_EQ((*model)(Tensor::zeros({4, 6})).shape(), (Shape{4, 3}));
}

TEST(Models, ASpecThatIsNoListOfWidthsIsAnErrorThatQuotesIt) {
  for (const char* spec : {"", "784", "784-", "-784", "784--10", "784-x-10", "784-0-10", "784-10 ",
                           "784--3-10", "99999999999999999999-10"}) {
    try {
      make_mlp(spec);
      ADD_FAILURE() << spec;
    } catch (const InvalidArgument& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(str("'", spec, "'")));
    }
  }
}

TEST(Models, TheCnnTakesImages) {
  auto model = make_fashion_cnn({.channels = 4});
  EXPECT_EQ((*model)(Tensor::zeros({2, 1, 28, 28})).shape(), (Shape{2, 10}));
  auto plain = make_fashion_cnn({.channels = 4, .batch_norm = false});
  EXPECT_TRUE(plain->buffers().empty());
  EXPECT_EQ((*plain)(Tensor::zeros({2, 1, 28, 28})).shape(), (Shape{2, 10}));
}

TEST(Models, AreBuiltOnTheMetaDeviceWithoutMemory) {
  auto model = make_mlp("784-4096-10", {.device = Device::meta()});
  EXPECT_EQ((*model)(Tensor::zeros({2, 784}, {.device = Device::meta()})).shape(), (Shape{2, 10}));
}

// A few steps on a fixed batch must bring the loss down a long way.
class Learning : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Models, Learning, testing::Values("mlp", "cnn"));

TEST_P(Learning, LearnsABatchByHeart) {
  manual_seed(3);
  auto model =
      std::string(GetParam()) == "mlp" ? make_mlp("784-64-10") : make_fashion_cnn({.channels = 4});
  const Tensor x = Tensor::randn({16, 1, 28, 28});
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < 16; ++i) labels.push_back(i % 10);
  const Tensor targets = Tensor::from(labels, {16});
  optim::SGD optimizer(model->parameters(), {.lr = 0.05, .momentum = 0.9});
  double first = 0;
  double last = 0;
  for (int step = 0; step < 30; ++step) {
    const Tensor loss = F::cross_entropy((*model)(x), targets);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    last = loss.item();
    if (step == 0) first = last;
  }
  EXPECT_NEAR(first, 2.3, 1);
  EXPECT_LT(last, 0.1);
}

}  // namespace
}  // namespace cohort::models
