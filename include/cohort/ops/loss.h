#pragma once

#include <cstdint>

#include "cohort/core/tensor.h"

namespace cohort {

enum class Reduction { none, mean, sum };

struct CrossEntropyOptions {
  // Rows with this target count neither in the sum nor in the mean.
  std::int64_t ignore_index = -100;
  // In [0, 1]: share of the target's weight that is spread over all classes.
  double label_smoothing = 0;
  Reduction reduction = Reduction::mean;
};

// Fused log-softmax and negative log-likelihood: logits [.., classes], targets [..] (i64 or i32).
// mean divides by the number of rows that are not ignored (NaN when there are none, as in PyTorch).
// InvalidArgument naming row and value when a target is outside [0, classes).
Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options = {});

// Squared difference, shapes equal.
Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction = Reduction::mean);

}  // namespace cohort
