#pragma once

#include <cstdint>
#include <span>

#include "cohort/comm/process_group.h"
#include "cohort/core/dtype.h"

namespace cohort::comm {

// What happens to a reduced value before it is rounded.
struct Finish {
  enum class Kind : std::uint8_t { none, multiply, divide };
  Kind kind = Kind::none;
  double by = 1;  // rounded to the type of the accumulation
};

// The finish of `op` over `ranks` ranks (CollectiveOptions::scale says how).
Finish finish_for(ReduceOp op, double scale, int ranks);

// destinations[d][i] = round(finish(sources[0][i] op sources[1][i] op …)) for all d and `count`
// elements, left to right. A destination may be one of the sources. At least one source.
// No element's bits depend on its position or on how a range is cut into calls.
void reduce(std::span<void* const> destinations, std::span<const void* const> sources,
            std::int64_t count, DType dtype, ReduceOp op, const Finish& finish);

// The same in two levels, with nothing rounded or finished between them: partial results are of
// partial_dtype(dtype), f32 for bf16 and f16 and the dtype itself for all others.
DType partial_dtype(DType dtype);
void reduce_to_partial(void* destination, std::span<const void* const> sources, std::int64_t count,
                       DType dtype, ReduceOp op);
void reduce_partials(void* destination, std::span<const void* const> partials, std::int64_t count,
                     DType dtype, ReduceOp op, const Finish& finish);

}  // namespace cohort::comm
