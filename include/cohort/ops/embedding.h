#pragma once

#include "cohort/core/tensor.h"

namespace cohort {

// Rows of weight [rows, width] picked by indices [..] (i64 or i32) -> [.., width]. The gradient of
// a row is the sum over its uses in order of position. InvalidArgument naming position and value
// for an index outside [0, rows).
Tensor embedding(const Tensor& indices, const Tensor& weight);

}  // namespace cohort
