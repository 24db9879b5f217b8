#pragma once

#include <memory>

#include "cohort/core/tensor.h"
#include "cohort/ops/norm.h"

namespace cohort {

// The other parts of a batch of which this program holds one, as batch_norm needs them. All parts
// make the same calls in the same order.
class BatchParts {
 public:
  virtual ~BatchParts() = default;
  // `row` [n] of every part, as the rows of one tensor [parts, n], in one order for all. A row of
  // zeros is that of an empty part.
  virtual Tensor gather(const Tensor& row) = 0;
  // Replaces `sums` by their sum over all parts.
  virtual void add_up(const Tensor& sums) = 0;

 protected:
  BatchParts() = default;
  BatchParts(const BatchParts&) = default;
  BatchParts& operator=(const BatchParts&) = default;
};

// batch_norm in training, by the statistics of all parts' inputs: one gather in forward, and in
// backward one add_up where x wants a gradient. x may be empty; InvalidArgument when all parts
// together have one value per channel. The parts' means and squared deviations are combined in f64
// in the order of the rows (Chan, Golub, LeVeque, 1983), so that all parts compute the same bits
// and a mean far from zero costs no digits. Running statistics move by the statistics of the whole
// batch, and stay where they are when all parts are empty. The gradients of weight and bias are
// those of this part. Without `parts`, in evaluation and on the meta device it is batch_norm.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                  Tensor running_var, const BatchNormOptions& options,
                  std::shared_ptr<BatchParts> parts);

}  // namespace cohort
