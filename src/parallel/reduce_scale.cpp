#include "parallel/reduce_scale.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort::parallel {

void ReduceScale::count(std::int64_t units) {
  check(policy_ == ReducePolicy::count, "[DDP] count() needs reduce_policy = count; this is ",
        policy_);
  check(units >= 0, "[DDP] a count must not be negative, got ", units);
  units_ = units + (units_ < 0 ? 0 : units_);
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

void ReduceScale::end() {
  units_ = -1;
  total_ = {};
}

}  // namespace cohort::parallel
