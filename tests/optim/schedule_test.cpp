#include "cohort/optim/schedule.h"

#include <gtest/gtest.h>

#include <vector>

#include "cohort/core/error.h"
#include "cohort/optim/sgd.h"

namespace cohort::optim {
namespace {

Tensor parameter() {
  return Tensor::zeros({1}, {.requires_grad = true});
}

TEST(LRScheduler, ScalesEachGroupFromItsOwnRate) {
  SGD optimizer({ParamGroup<SGDOptions>{{parameter()}, SGDOptions{.lr = 1}},
                 {{parameter()}, SGDOptions{.lr = 0.1}}});
  LRScheduler scheduler(optimizer, StepLR{.step_size = 2, .gamma = 0.5});
  scheduler.step();
  EXPECT_DOUBLE_EQ(optimizer.lr(0), 1);
  scheduler.step();
  EXPECT_DOUBLE_EQ(optimizer.lr(0), 0.5);
  EXPECT_DOUBLE_EQ(optimizer.lr(1), 0.05);
}

TEST(LRScheduler, AppliesTheFirstRateAtConstruction) {
  SGD optimizer({parameter()}, {.lr = 1});
  const LRScheduler scheduler(optimizer, LinearWarmup{.total_iters = 4, .start_factor = 0.5});
  EXPECT_DOUBLE_EQ(optimizer.lr(), 0.5);
}

TEST(LRScheduler, ResumesAtAnyStep) {
  SGD optimizer({parameter()}, {.lr = 1});
  LRScheduler scheduler(optimizer, CosineAnnealingLR{.t_max = 8});
  for (int i = 0; i < 5; ++i) scheduler.step();
  const double rate = optimizer.lr();
  scheduler.set_step(0);
  EXPECT_DOUBLE_EQ(optimizer.lr(), 1);
  scheduler.set_step(5);
  EXPECT_EQ(optimizer.lr(), rate);
  EXPECT_EQ(scheduler.step_count(), 5);
}

TEST(LRScheduler, TakesInGroupsThatAreAddedLater) {
  SGD optimizer({parameter()}, {.lr = 1});
  LRScheduler scheduler(optimizer, StepLR{.step_size = 1, .gamma = 0.5});
  optimizer.add_param_group({{parameter()}, SGDOptions{.lr = 0.25}});
  scheduler.step();
  EXPECT_DOUBLE_EQ(optimizer.lr(0), 0.5);
  EXPECT_DOUBLE_EQ(optimizer.lr(1), 0.125);
}

TEST(LRScheduler, TakesAnyFunctionForASchedule) {
  SGD optimizer({parameter()}, {.lr = 3});
  LRScheduler scheduler(
      optimizer, [](double lr, std::int64_t step) { return lr / static_cast<double>(step + 1); });
  scheduler.step();
  EXPECT_DOUBLE_EQ(optimizer.lr(), 1.5);
}

TEST(LRScheduler, RefusesSchedulesThatCannotBeRight) {
  SGD optimizer({parameter()}, {.lr = 1});
  const std::vector<Schedule> bad = {
      Schedule(),
      StepLR{.step_size = 0},
      CosineAnnealingLR{.t_max = 0},
      LinearWarmup{.total_iters = 0},
      LinearWarmup{.start_factor = 0},
      LinearWarmup{.start_factor = 1.5},
      SequentialLR{},
      SequentialLR{{StepLR{.step_size = 1}}, {3}},
      SequentialLR{{StepLR{.step_size = 1}, StepLR{.step_size = 1}}, {0}},
      SequentialLR{{StepLR{.step_size = 1}, StepLR{.step_size = 1}, StepLR{.step_size = 1}},
                   {4, 3}},
  };
  for (std::size_t i = 0; i < bad.size(); ++i) {
    EXPECT_THROW(LRScheduler(optimizer, bad[i]), InvalidArgument) << i;
    EXPECT_EQ(optimizer.lr(), 1) << i;
  }
  LRScheduler scheduler(optimizer, StepLR{.step_size = 1});
  EXPECT_THROW(scheduler.set_step(-1), InvalidArgument);
}

}  // namespace
}  // namespace cohort::optim
