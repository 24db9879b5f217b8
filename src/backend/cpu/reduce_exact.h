#pragma once

#include <cstdint>

#include "backend/view.h"

namespace cohort::backend::cpu {

// Sums of squares without rounding: a fixed-point number so wide that every square of a float or
// double is a whole multiple of its unit, hence independent of the order of addition.
//
// The number is the sum of limbs[i] * 2^(32 i - 2148), i < kExactSumSize - 2, and 2^-2148 is the
// square of the smallest double. Limbs have room for carries: they lie in [0, 2^32) after a kernel,
// so that 2^30 tensors of limbs may be added. The last two elements count infinities and NaN.
void add_squares_now(const View& limbs, const View& in);

// The square root of the number, rounded from its 64 leading bits.
double root_of_limbs(const std::int64_t* limbs);

}  // namespace cohort::backend::cpu
