#pragma once

#include <cstdint>
#include <span>

#include "comm/reduce.h"

namespace cohort::comm {

// reduce() for f32, f64, bf16 and f16, with the vectors of the CPU it runs on.
void reduce_float(std::span<void* const> destinations, std::span<const void* const> sources,
                  std::int64_t count, DType dtype, ReduceOp op, const Finish& finish);

}  // namespace cohort::comm
