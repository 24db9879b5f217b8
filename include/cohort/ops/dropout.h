#pragma once

#include "cohort/core/tensor.h"

namespace cohort {

// Training: zeroes each element with probability p and divides the others by 1 - p; the numbers
// come from the context's `generator`, which differs by rank. Else returns `a`. p in [0, 1].
Tensor dropout(const Tensor& a, double p, bool training = true);

}  // namespace cohort
