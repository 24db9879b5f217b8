#pragma once

#include "backend/view.h"

namespace cohort::backend::cpu {

// The bodies of ElementwiseKernels::fill and ::copy; they run at once, in the calling thread.
void fill_now(const View& out, double value);
void copy_now(const View& out, const View& in);

}  // namespace cohort::backend::cpu
