#include "cohort/optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::optim {

double StepLR::operator()(double initial_lr, std::int64_t step) const {
  check(step_size > 0, "[StepLR] step_size is ", step_size, "; it must be positive");
  return initial_lr * std::pow(gamma, static_cast<double>(step / step_size));
}

double CosineAnnealingLR::operator()(double initial_lr, std::int64_t step) const {
  check(t_max > 0, "[CosineAnnealingLR] t_max is ", t_max, "; it must be positive");
  const double angle = std::numbers::pi * static_cast<double>(step) / static_cast<double>(t_max);
  return eta_min + (initial_lr - eta_min) * (1 + std::cos(angle)) / 2;
}

double LinearWarmup::operator()(double initial_lr, std::int64_t step) const {
  check(total_iters > 0, "[LinearWarmup] total_iters is ", total_iters, "; it must be positive");
  check(start_factor > 0 && start_factor <= 1, "[LinearWarmup] start_factor is ", start_factor,
        "; it must lie in (0, 1]");
  const double done = static_cast<double>(std::min(step, total_iters));
  return initial_lr * (start_factor + (1 - start_factor) * done / static_cast<double>(total_iters));
}

double SequentialLR::operator()(double initial_lr, std::int64_t step) const {
  check(!schedules.empty() && schedules.size() == milestones.size() + 1, "[SequentialLR] ",
        schedules.size(), " schedules need one milestone fewer, got ", milestones.size());
  check(std::is_sorted(milestones.begin(), milestones.end()) &&
            (milestones.empty() || milestones.front() > 0),
        "[SequentialLR] milestones must be positive and ascending");
  const auto after = std::upper_bound(milestones.begin(), milestones.end(), step);
  const auto index = static_cast<std::size_t>(after - milestones.begin());
  const std::int64_t start = index == 0 ? 0 : milestones[index - 1];
  check(schedules[index] != nullptr, "[SequentialLR] schedule ", index, " is empty");
  return schedules[index](initial_lr, step - start);
}

LRScheduler::LRScheduler(Optimizer& optimizer, Schedule schedule)
    : optimizer_(optimizer), schedule_(std::move(schedule)) {
  check(schedule_ != nullptr, "[LRScheduler] the schedule is empty");
  for (std::size_t group = 0; group < optimizer.group_count(); ++group) {
    initial_lrs_.push_back(optimizer.lr(group));
  }
  set_step(0);
}

void LRScheduler::set_step(std::int64_t step) {
  check(step >= 0, "[LRScheduler] step ", step, " is negative");
  // A group added since then starts from the rate it came with.
  for (std::size_t group = initial_lrs_.size(); group < optimizer_.group_count(); ++group) {
    initial_lrs_.push_back(optimizer_.lr(group));
  }
  for (std::size_t group = 0; group < initial_lrs_.size(); ++group) {
    optimizer_.set_lr(schedule_(initial_lrs_[group], step), group);
  }
  step_ = step;
}

}  // namespace cohort::optim
