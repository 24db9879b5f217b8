#pragma once

#include <cstdint>
#include <span>

#include "comm/reduce.h"

namespace cohort::comm {

// reduce() for f32, f64, bf16 and f16, with the vectors of the CPU it runs on.
void reduce_float(std::span<void* const> destinations, std::span<const void* const> sources,
                  std::int64_t count, DType dtype, ReduceOp op, const Finish& finish);
// From bf16 or f16 (`dtype`) to f32, unrounded, and from f32 to bf16 or f16.
void reduce_half_to_float(void* destination, std::span<const void* const> sources,
                          std::int64_t count, DType dtype, ReduceOp op);
void reduce_float_to_half(void* destination, std::span<const void* const> sources,
                          std::int64_t count, DType dtype, ReduceOp op, const Finish& finish);

}  // namespace cohort::comm
