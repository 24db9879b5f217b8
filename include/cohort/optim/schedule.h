#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "cohort/optim/optimizer.h"

// Learning rate schedules. A schedule is a function of the group's initial rate and the number of
// scheduler steps taken; LRScheduler applies one to an optimizer:
//
//   optim::LRScheduler scheduler(optimizer, optim::CosineAnnealingLR{.t_max = 100});
//   for (...) { ...; optimizer.step(); scheduler.step(); }
//
// The values are those of PyTorch's closed forms. InvalidArgument for members that cannot be right.
namespace cohort::optim {

// initial_lr, step -> lr.
using Schedule = std::function<double(double, std::int64_t)>;

// The rate times gamma every step_size steps.
struct StepLR {
  std::int64_t step_size = 1;
  double gamma = 0.1;
  double operator()(double initial_lr, std::int64_t step) const;
};

// Half a cosine from the initial rate down to eta_min over t_max steps, and up again after
// (Loshchilov, Hutter: SGDR, 2017, without restarts).
struct CosineAnnealingLR {
  std::int64_t t_max = 1;
  double eta_min = 0;
  double operator()(double initial_lr, std::int64_t step) const;
};

// From start_factor times the initial rate to the rate itself, linearly over total_iters steps.
// PyTorch's LinearLR with end_factor 1.
struct LinearWarmup {
  std::int64_t total_iters = 5;
  double start_factor = 1.0 / 3;
  double operator()(double initial_lr, std::int64_t step) const;
};

// One schedule after the other: schedules[i + 1] takes over at step milestones[i], and counts from
// there. PyTorch's SequentialLR.
struct SequentialLR {
  std::vector<Schedule> schedules;
  std::vector<std::int64_t> milestones;  // ascending, one fewer than schedules
  double operator()(double initial_lr, std::int64_t step) const;
};

// Sets the rates of an optimizer's groups by a schedule. Takes the rates it finds at construction
// for the initial ones, and applies step 0 at once. Refers to the optimizer, which must outlive it.
class LRScheduler {
 public:
  LRScheduler(Optimizer& optimizer, Schedule schedule);

  // Call once per optimizer step, or per epoch: whichever the schedule counts.
  void step() { set_step(step_ + 1); }
  std::int64_t step_count() const { return step_; }
  // Goes to a step, as after loading a checkpoint.
  void set_step(std::int64_t step);

 private:
  Optimizer& optimizer_;
  Schedule schedule_;
  std::vector<double> initial_lrs_;
  std::int64_t step_ = 0;
};

}  // namespace cohort::optim
