#pragma once

#include "backend/view.h"

namespace cohort::backend::cpu {

// The body of ReduceKernels::sum; runs at once, in the calling thread.
void sum_now(const View& out, const View& in, bool accumulate, double divisor);

}  // namespace cohort::backend::cpu
