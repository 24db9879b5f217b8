#pragma once

#include "cohort/core/tensor.h"

namespace cohort {

// Along `dim`, with the largest element subtracted first.
Tensor softmax(const Tensor& a, int dim = -1);
Tensor log_softmax(const Tensor& a, int dim = -1);

}  // namespace cohort
