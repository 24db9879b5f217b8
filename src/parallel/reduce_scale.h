#pragma once

#include <cstdint>
#include <memory>

#include "cohort/comm/process_group.h"
#include "cohort/parallel/ddp_options.h"

namespace cohort::parallel {

// What the sum of the ranks' gradients is multiplied by. Belongs to the rank's host thread.
class ReduceScale {
 public:
  ReduceScale(std::shared_ptr<comm::ProcessGroup> group, ReducePolicy policy)
      : group_(std::move(group)), policy_(policy) {}

  // ReducePolicy::count: adds to this rank's count of the running accumulation.
  void count(std::int64_t units);
  // ReducePolicy::mean: divides by `ranks` instead of the group's size; 0 stands for that again.
  void divide_by(int ranks) { ranks_ = ranks; }

  // Before the first bucket of a synchronising backward. Under `count` starts the sum of all
  // ranks' counts.
  void begin();
  // Whether count() was not called before it, although it had to be.
  bool count_missing() const { return policy_ == ReducePolicy::count && units_ < 0; }
  comm::ReduceOp op() const;
  // Waits for that sum. AutogradError, on every rank, when it is zero.
  double scale();
  // The same for a rank that has failed: what the others will multiply by, or 1 as they do when
  // their counts add up to zero.
  double scale_or_one();
  // After a synchronised backward: counting begins anew.
  void end();

 private:
  std::shared_ptr<comm::ProcessGroup> group_;
  ReducePolicy policy_;
  int ranks_ = 0;
  std::int64_t units_ = -1;  // -1: count() was not called
  Tensor total_;             // undefined outside a backward, and once it is read
  comm::Work summing_;
  double scale_ = 1;
};

}  // namespace cohort::parallel
