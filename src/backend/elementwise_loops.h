#pragma once

// Walks operands of any strides as nested loops whose innermost one is as long as possible, and
// gives every run of it to a function that works on vectors of one type.

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/view.h"

namespace cohort::backend {

// N operands of one shape; operand 0 is the output. Dimensions that all operands walk evenly are
// merged, those of size 1 are dropped: contiguous operands become a single run.
template <int N>
struct Loops {
  std::array<std::byte*, N> data;
  std::array<DType, N> dtype;
  std::array<std::int64_t, N> step;  // of the innermost loop, in elements
  std::int64_t run;                  // length of the innermost loop
  int outer;                         // number of loops around it, innermost of them first
  std::array<std::int64_t, Dims::kMax> size;
  std::array<std::array<std::int64_t, N>, Dims::kMax> stride;  // in bytes

  bool empty() const { return run == 0; }
};

template <int N>
Loops<N> make_loops(const std::array<const View*, N>& views) {
  Loops<N> loops;
  bool flat = true;
  for (int k = 0; k < N; ++k) {
    loops.data[k] = views[k]->template as<std::byte>();
    loops.dtype[k] = views[k]->dtype;
    loops.step[k] = 1;
    flat = flat && views[k]->contiguous;
  }
  const std::int64_t numel = views[0]->numel;
  loops.run = numel;
  loops.outer = 0;
  if (flat || numel <= 1) return loops;

  // From the last dimension to the first: merge into the loop inside, or open a new one.
  const Shape& shape = views[0]->shape;
  int depth = -1;  // loop -1 is not open yet, loop 0 is the innermost
  std::array<std::int64_t, N> inner_step{};
  const auto size_of = [&](int d) -> std::int64_t& {
    return d == 0 ? loops.run : loops.size[static_cast<std::size_t>(d - 1)];
  };
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] == 1) continue;
    bool merge = depth >= 0;
    for (int k = 0; merge && k < N; ++k) {
      merge = views[k]->strides[i] == inner_step[k] * size_of(depth);
    }
    if (merge) {
      size_of(depth) *= shape[i];
      continue;
    }
    ++depth;
    size_of(depth) = shape[i];
    for (int k = 0; k < N; ++k) {
      inner_step[k] = views[k]->strides[i];
      if (depth == 0) {
        loops.step[k] = inner_step[k];
      } else {
        loops.stride[static_cast<std::size_t>(depth - 1)][k] =
            inner_step[k] * static_cast<std::int64_t>(item_size(loops.dtype[k]));
      }
    }
  }
  loops.outer = depth;
  return loops;
}

// Calls fn(addresses of the operands) for every run, in row-major order.
template <int N, typename F>
void for_each_run(const Loops<N>& loops, F&& fn) {
  if (loops.empty()) return;
  std::array<std::byte*, N> at = loops.data;
  if (loops.outer == 0) {
    fn(at);
    return;
  }
  std::array<std::int64_t, Dims::kMax> index{};
  for (;;) {
    fn(at);
    int d = 0;
    for (;; ++d) {
      if (d == loops.outer) return;
      const auto& stride = loops.stride[static_cast<std::size_t>(d)];
      const std::int64_t size = loops.size[static_cast<std::size_t>(d)];
      if (++index[static_cast<std::size_t>(d)] < size) {
        for (int k = 0; k < N; ++k) at[k] += stride[k];
        break;
      }
      index[static_cast<std::size_t>(d)] = 0;
      for (int k = 0; k < N; ++k) at[k] -= stride[k] * (size - 1);
    }
  }
}

// The type an operation on these dtypes computes in.
inline DType compute_dtype(DType a, DType b) {
  if (a == DType::f64 || b == DType::f64) return DType::f64;
  return is_floating(a) || is_floating(b) ? DType::f32 : DType::i64;
}

}  // namespace cohort::backend
