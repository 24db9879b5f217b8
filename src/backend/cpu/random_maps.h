#pragma once

// The vector loops of the random kernels.

#include <cstddef>
#include <cstdint>

#include "cohort/core/random.h"

namespace cohort::backend::cpu {

// bits[i] = the bits of element 4 * first_block + i, for i < 4 * blocks; blocks is a multiple
// of 16.
void philox_bits(const PhiloxState& state, std::uint64_t first_block, std::size_t blocks,
                 std::uint32_t* bits);
// values[i] = a standard normal number from bits[i] and its partner's; count is a multiple of 64.
void box_muller(const std::uint32_t* bits, double* values, std::size_t count);
// out[i] = in[i] * scale, or 0 where the uniform number of bits[i] is below p.
void drop(const std::uint32_t* bits, const float* in, float* out, std::size_t count, double p);
void drop(const std::uint32_t* bits, const double* in, double* out, std::size_t count, double p);

}  // namespace cohort::backend::cpu
