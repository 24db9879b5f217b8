#pragma once

// Conversion between storage types and the three types that kernels compute in (float, double,
// int64), over contiguous elements; and moves between strided and contiguous elements.
// Every element is converted by the same code whatever its position.

#include <cstddef>
#include <cstdint>

#include "cohort/core/dtype.h"

namespace cohort::backend::cpu {

// to[i] = from[i] for i < count, `from` of dtype `dtype`.
void load(float* to, const void* from, DType dtype, std::size_t count);
void load(double* to, const void* from, DType dtype, std::size_t count);
void load(std::int64_t* to, const void* from, DType dtype, std::size_t count);

// The reverse, rounded once to nearest even. Floating to integral truncates and saturates (NaN: 0),
// integral to narrower integral wraps, anything but zero is true.
void store(void* to, DType dtype, const float* from, std::size_t count);
void store(void* to, DType dtype, const double* from, std::size_t count);
void store(void* to, DType dtype, const std::int64_t* from, std::size_t count);

// Raw moves of elements of `item` bytes (1, 2, 4 or 8); steps are in elements.
void gather(void* to, const void* from, std::int64_t step, std::size_t item, std::size_t count);
void scatter(void* to, std::int64_t step, const void* from, std::size_t item, std::size_t count);

// Calls fn(T{}) with the type that stands for `compute`.
template <typename F>
decltype(auto) dispatch_compute(DType compute, F&& fn) {
  switch (compute) {
    case DType::f64:
      return fn(double{});
    case DType::i64:
      return fn(std::int64_t{});
    default:
      return fn(float{});
  }
}

}  // namespace cohort::backend::cpu
