#pragma once

#include <cuda_runtime_api.h>

#include "backend/elementwise_loops.h"

namespace cohort::backend::cuda {

// N operands of one shape for a kernel that is given the row-major number of an element. Operands
// that are walked evenly together have been merged, so that contiguous ones have one dimension.
template <int N>
struct Walk {
  std::byte* data[N];
  DType dtype[N];
  int rank;                            // at least 1
  std::int64_t size[Dims::kMax];       // innermost first
  std::int64_t stride[Dims::kMax][N];  // in bytes

  __device__ void locate(std::int64_t number, std::byte* (&at)[N]) const {
    for (int k = 0; k < N; ++k) at[k] = data[k];
    for (int d = 0; d < rank; ++d) {
      // The last dimension takes what is left: no division for contiguous operands.
      const bool last = d + 1 == rank;
      const std::int64_t rest = last ? 0 : number / size[d];
      const std::int64_t index = number - rest * size[d];
      for (int k = 0; k < N; ++k) at[k] += index * stride[d][k];
      number = rest;
    }
  }
};

template <int N>
Walk<N> make_walk(const std::array<const View*, N>& views) {
  const Loops<N> loops = make_loops<N>(views);
  Walk<N> walk{};
  walk.rank = loops.outer + 1;
  walk.size[0] = loops.run;
  for (int k = 0; k < N; ++k) {
    const auto operand = static_cast<std::size_t>(k);
    walk.data[k] = loops.data[operand];
    walk.dtype[k] = loops.dtype[operand];
    walk.stride[0][k] =
        loops.step[operand] * static_cast<std::int64_t>(item_size(loops.dtype[operand]));
    for (int d = 0; d < loops.outer; ++d) {
      const auto loop = static_cast<std::size_t>(d);
      walk.size[d + 1] = loops.size[loop];
      walk.stride[d + 1][k] = loops.stride[loop][operand];
    }
  }
  return walk;
}

}  // namespace cohort::backend::cuda
