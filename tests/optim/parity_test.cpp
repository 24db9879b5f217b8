// Optimizers, schedules and whole trainings against PyTorch's values (tests/data).
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/nn/nn.h"
#include "cohort/optim/optim.h"
#include "support/reference.h"

namespace cohort::optim {
namespace {

using test::close;
using test::Reference;

using MakeOptimizer = std::function<std::unique_ptr<Optimizer>(const std::vector<Tensor>&)>;

template <typename O, typename Options>
MakeOptimizer with(const Options& options) {
  return
      [options](const std::vector<Tensor>& params) { return std::make_unique<O>(params, options); };
}

struct OptimizerCase {
  const char* name;
  MakeOptimizer make;
};

class TenSteps : public testing::TestWithParam<OptimizerCase> {
 protected:
  // Runs the ten steps of the reference in `dtype` and compares every one.
  void run(DType dtype, const std::string& suffix, double relative, double absolute) const {
    const Reference reference("optim");
    const Tensor gradients = reference.get("gradients").to(dtype);
    Tensor param = reference.get("start").to(dtype).clone();
    param.set_requires_grad(true);
    const auto optimizer = GetParam().make({param});
    std::vector<Tensor> steps;
    for (int step = 0; step < 10; ++step) {
      param.set_grad(select(gradients, 0, step).clone());
      optimizer->step();
      steps.push_back(param.detach().clone());
    }
    EXPECT_TRUE(close(stack(steps), reference.get(GetParam().name + suffix), relative, absolute));
  }
};

TEST_P(TenSteps, EqualPyTorchsInF32) {
  // A few roundings of f32 (6e-8) per step.
  run(f32, "", 2e-6, 2e-7);
}

TEST_P(TenSteps, EqualPyTorchsInF64) {
  run(f64, ".f64", 1e-13, 1e-14);
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, TenSteps,
    testing::Values(
        OptimizerCase{"sgd", with<SGD>(SGDOptions{.lr = 0.1})},
        OptimizerCase{"sgd.decay", with<SGD>(SGDOptions{.lr = 0.1, .weight_decay = 0.05})},
        OptimizerCase{"sgd.momentum", with<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9})},
        OptimizerCase{"sgd.dampening",
                      with<SGD>(SGDOptions{
                          .lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05})},
        OptimizerCase{"sgd.nesterov",
                      with<SGD>(SGDOptions{
                          .lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true})},
        OptimizerCase{"sgd.maximize",
                      with<SGD>(SGDOptions{.lr = 0.1, .momentum = 0.9, .maximize = true})},
        OptimizerCase{"adam", with<Adam>(AdamOptions{.lr = 0.01})},
        OptimizerCase{"adam.decay",
                      with<Adam>(AdamOptions{
                          .lr = 0.01, .betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.1})},
        OptimizerCase{"adam.amsgrad", with<Adam>(AdamOptions{.lr = 0.01, .amsgrad = true})},
        OptimizerCase{"adam.maximize", with<Adam>(AdamOptions{.lr = 0.01, .maximize = true})},
        OptimizerCase{"adamw", with<AdamW>(AdamWOptions{.lr = 0.01})},
        OptimizerCase{"adamw.decay",
                      with<AdamW>(AdamWOptions{
                          .lr = 0.01, .betas = {0.8, 0.95}, .eps = 1e-6, .weight_decay = 0.1})},
        OptimizerCase{"adamw.amsgrad",
                      with<AdamW>(AdamWOptions{.lr = 0.01, .weight_decay = 0.1, .amsgrad = true})}),
    [](const auto& info) {
      std::string name = info.param.name;
      for (char& c : name) c = c == '.' ? '_' : c;
      return name;
    });

struct ScheduleCase {
  const char* name;
  Schedule schedule;
};

class Schedules : public testing::TestWithParam<ScheduleCase> {};

TEST_P(Schedules, EqualPyTorchs) {
  SGD optimizer({Tensor::zeros({1}, {.requires_grad = true})}, {.lr = 0.5});
  LRScheduler scheduler(optimizer, GetParam().schedule);
  std::vector<double> rates;
  for (int step = 0; step < 25; ++step) {
    rates.push_back(optimizer.lr());
    scheduler.step();
  }
  const Tensor expected = Reference("schedules").get(GetParam().name);
  EXPECT_TRUE(close(Tensor::from(rates, {25}), expected, 1e-12, 1e-15));
}

INSTANTIATE_TEST_SUITE_P(
    All, Schedules,
    testing::Values(ScheduleCase{"step", StepLR{.step_size = 7, .gamma = 0.3}},
                    ScheduleCase{"cosine", CosineAnnealingLR{.t_max = 10, .eta_min = 0.02}},
                    ScheduleCase{"warmup", LinearWarmup{.total_iters = 8, .start_factor = 0.25}},
                    ScheduleCase{"warmup_cosine",
                                 SequentialLR{{LinearWarmup{.total_iters = 5, .start_factor = 0.1},
                                               CosineAnnealingLR{.t_max = 10, .eta_min = 0.02}},
                                              {5}}}),
    [](const auto& info) { return std::string(info.param.name); });

std::shared_ptr<nn::Sequential> network() {
  return std::make_shared<nn::Sequential>(
      nn::Conv2d(2, 4, 3, {.padding = 1, .bias = false}), nn::BatchNorm2d(4), nn::ReLU(),
      nn::MaxPool2d(2), nn::Conv2d(4, 6, 3, {.stride = 2, .groups = 2}), nn::GELU(), nn::Flatten(),
      nn::Linear(6, 8), nn::LayerNorm(8), nn::Tanh(), nn::Linear(8, 3));
}

class Training : public testing::TestWithParam<OptimizerCase> {
 protected:
  // In f64 nothing but the order of sums may differ; ten steps of Adam, which divides by small
  // numbers, multiply that.
  static constexpr double kTolerance = 1e-9;

  Tensor loss_of(const Tensor& logits) const {
    return cross_entropy(logits, reference_.get("targets"), {.label_smoothing = 0.1});
  }

  Reference reference_{"training"};
};

TEST_P(Training, OfAConvolutionalNetworkEqualsPyTorchs) {
  const std::string name = GetParam().name;
  const auto net = network();
  net->to(f64);
  for (const nn::NamedTensor& entry : net->named_state()) {
    const NoGrad no_grad;
    Tensor(entry.tensor).copy_(reference_.get("start." + entry.name));
  }
  const auto optimizer = GetParam().make(net->parameters());
  std::vector<double> losses;
  std::vector<double> norms;
  for (int step = 0; step < 10; ++step) {
    const Tensor logits = (*net)(reference_.get("x"));
    const Tensor loss = loss_of(logits);
    optimizer->zero_grad();
    loss.backward();
    if (step == 0) {
      EXPECT_TRUE(close(logits.detach(), reference_.get("logits"), 1e-12, 1e-13));
      for (const nn::NamedTensor& entry : net->named_parameters()) {
        EXPECT_TRUE(
            close(entry.tensor.grad(), reference_.get("gradient." + entry.name), 1e-11, 1e-13))
            << entry.name;
      }
    }
    norms.push_back(clip_grad_norm_(net->parameters(), 1));
    optimizer->step();
    losses.push_back(loss.item());
  }
  EXPECT_TRUE(close(Tensor::from(losses, {10}), reference_.get(name + ".losses"), kTolerance));
  EXPECT_TRUE(close(Tensor::from(norms, {10}), reference_.get(name + ".norms"), kTolerance));
  for (const nn::NamedTensor& entry : net->named_state()) {
    EXPECT_TRUE(close(entry.tensor.detach(), reference_.get(name + ".end." + entry.name),
                      kTolerance, kTolerance))
        << entry.name;
  }
  net->eval();
  EXPECT_TRUE(close((*net)(reference_.get("x")).detach(), reference_.get(name + ".eval_logits"),
                    kTolerance, kTolerance));
}

INSTANTIATE_TEST_SUITE_P(
    Optimizers, Training,
    testing::Values(
        OptimizerCase{"sgd",
                      with<SGD>(SGDOptions{
                          .lr = 0.1, .momentum = 0.9, .weight_decay = 1e-3, .nesterov = true})},
        OptimizerCase{"adam", with<Adam>(AdamOptions{.lr = 1e-2})},
        OptimizerCase{"adamw", with<AdamW>(AdamWOptions{.lr = 1e-2, .weight_decay = 0.1})}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace cohort::optim
