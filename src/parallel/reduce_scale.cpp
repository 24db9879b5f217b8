#include "parallel/reduce_scale.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort::parallel {

void ReduceScale::count(std::int64_t units) {
  check(policy_ == ReducePolicy::count, "[DDP] count() needs reduce_policy = count; this is ",
        policy_);
  // So that the sum over any number of ranks stays far from the end of 64 bits.
  constexpr std::int64_t kMost = std::int64_t{1} << 40;
  const std::int64_t before = units_ < 0 ? 0 : units_;
  check(units >= 0 && units <= kMost - before, "[DDP] a count must be between 0 and 2^40, got ",
        units, " after ", before);
  units_ = before + units;
}

void ReduceScale::begin() {
  scale_ = 1;
  if (policy_ == ReducePolicy::mean && ranks_ > 0) scale_ = 1.0 / ranks_;
  if (policy_ != ReducePolicy::count) return;
  // A rank that was not told takes part all the same: the others count on it.
  total_ = Tensor::scalar(count_missing() ? std::int64_t{0} : units_);
  summing_ = group_->all_reduce(total_, comm::ReduceOp::sum, {.owner = "global count"});
}

comm::ReduceOp ReduceScale::op() const {
  return policy_ == ReducePolicy::mean && ranks_ == 0 ? comm::ReduceOp::mean : comm::ReduceOp::sum;
}

double ReduceScale::scale() {
  if (!total_.defined()) return scale_;
  summing_.synchronize();
  const auto total = std::exchange(total_, {}).item<std::int64_t>();
  check<AutogradError>(total > 0, "[DDP] the ranks' counts of this step add up to zero (rank ",
                       group_->rank(), "); there is nothing to take a mean of");
  scale_ = 1.0 / static_cast<double>(total);
  return scale_;
}

double ReduceScale::scale_or_one() {
  try {
    return scale();
  } catch (const AutogradError&) {
    return 1;
  }
}

void ReduceScale::end() {
  units_ = -1;
  total_ = {};
}

}  // namespace cohort::parallel
