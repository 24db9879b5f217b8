#pragma once

#include <cstdint>

#include "cohort/core/dtype.h"

namespace cohort::backend::cpu {

// out [columns] = the sum of `rows` rows that lie `ld` elements apart, plus out when `accumulate`.
// Summed in f32 (f64 for f64), in blocks of rows and then the blocks, rounded once.
void column_sum(DType dtype, const void* a, std::int64_t rows, std::int64_t columns,
                std::int64_t ld, void* out, bool accumulate);

}  // namespace cohort::backend::cpu
