#include <algorithm>
#include <cstddef>
#include <memory>

#include "backend/cpu/gemm.h"
#include "backend/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/gemm_blocked.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

// The blocking of Goto and van de Geijn, "Anatomy of High-Performance Matrix Multiplication"
// (2008): panels of op(a) and op(b) are packed so that the innermost tile reads both in order.

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu {
namespace HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

// A tile of kRows x two vectors of c stays in registers: 12 x 2 of 32, or 6 x 2 of 16, with room
// for two vectors of b and one of a.
constexpr int kRows = HWY_TARGET <= HWY_AVX3 ? 12 : 6;
constexpr int kVectors = 2;
// Depth of a panel: a panel of b is 256 x 32 floats, 32 KiB, in the L1 cache.
constexpr std::int64_t kDepth = 256;
// Rows of a that are packed at once: 240 x 256 floats, 240 KiB, in the L2 cache.
constexpr std::int64_t kBlockRows = 240;
constexpr std::size_t kAlign = 64;

template <typename T>
struct AlignedBuffer {
  explicit AlignedBuffer(std::int64_t count)
      : data(static_cast<T*>(::operator new (static_cast<std::size_t>(count) * sizeof(T),
                                             std::align_val_t{kAlign}))) {}
  ~AlignedBuffer() { ::operator delete (data, std::align_val_t{kAlign}); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  T* data;
};

// Element (i, j) of a stored matrix lies at i * row + j * column.
template <typename T>
struct Strided {
  const T* data;
  std::int64_t row, column;
};

// Packs `width` lanes of each of `depth` steps, step after step, zeros beyond `lanes`. Lane l of
// step p lies at l * lane_stride + p * step_stride.
template <typename T>
void pack(T* HWY_RESTRICT to, const T* from, std::int64_t lanes, std::int64_t width,
          std::int64_t lane_stride, std::int64_t depth, std::int64_t step_stride) {
  for (std::int64_t p = 0; p < depth; ++p) {
    const T* step = from + p * step_stride;
    std::int64_t l = 0;
    if (lane_stride == 1) {
      for (; l < lanes; ++l) to[l] = step[l];
    } else {
      for (; l < lanes; ++l) to[l] = step[l * lane_stride];
    }
    for (; l < width; ++l) to[l] = T{0};
    to += width;
  }
}

// tile [kRows x two vectors] = the product of two packed panels, plus what is there if `add`.
template <typename T>
HWY_ATTR void multiply_panels(const T* HWY_RESTRICT a, const T* HWY_RESTRICT b, std::int64_t depth,
                              T* HWY_RESTRICT tile, std::int64_t ld, bool add) {
  const hn::ScalableTag<T> d;
  const std::size_t lanes = hn::Lanes(d);
  hn::Vec<decltype(d)> sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    sum[r][0] = hn::Zero(d);
    sum[r][1] = hn::Zero(d);
  }
  for (std::int64_t p = 0; p < depth; ++p) {
    const auto b0 = hn::LoadU(d, b);
    const auto b1 = hn::LoadU(d, b + lanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const auto value = hn::Set(d, a[r]);
      sum[r][0] = hn::MulAdd(value, b0, sum[r][0]);
      sum[r][1] = hn::MulAdd(value, b1, sum[r][1]);
    }
    a += kRows;
    b += kVectors * lanes;
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    T* row = tile + r * ld;
    if (add) {
      sum[r][0] = hn::Add(hn::LoadU(d, row), sum[r][0]);
      sum[r][1] = hn::Add(hn::LoadU(d, row + lanes), sum[r][1]);
    }
    hn::StoreU(sum[r][0], d, row);
    hn::StoreU(sum[r][1], d, row + lanes);
  }
}

// As multiply_panels for a tile that hangs over the edge of c: goes through a tile of its own, so
// that every element is computed by the same instructions.
template <typename T>
void multiply_edge(const T* a, const T* b, std::int64_t depth, T* c, std::int64_t ld, bool add,
                   std::int64_t rows, std::int64_t columns) {
  const auto width = static_cast<std::int64_t>(kVectors * hn::Lanes(hn::ScalableTag<T>()));
  HWY_ALIGN T tile[kRows * kVectors * HWY_MAX_BYTES / sizeof(T)] = {};
  if (add) {
    for (std::int64_t r = 0; r < rows; ++r) std::copy_n(c + r * ld, columns, tile + r * width);
  }
  multiply_panels(a, b, depth, tile, width, add);
  for (std::int64_t r = 0; r < rows; ++r) std::copy_n(tile + r * width, columns, c + r * ld);
}

template <typename T>
void multiply(const Gemm& g, Strided<T> a, Strided<T> b, T* c) {
  const auto width = static_cast<std::int64_t>(kVectors * hn::Lanes(hn::ScalableTag<T>()));
  const std::int64_t depth = std::min(kDepth, g.k);
  const std::int64_t block_rows = std::min(kBlockRows, (g.m + kRows - 1) / kRows * kRows);
  const AlignedBuffer<T> packed_a(block_rows * depth);
  const AlignedBuffer<T> packed_b(width * depth);
  for (std::int64_t p = 0; p < g.k; p += kDepth) {
    const std::int64_t steps = std::min(kDepth, g.k - p);
    const bool add = g.accumulate || p > 0;
    for (std::int64_t i = 0; i < g.m; i += kBlockRows) {
      const std::int64_t rows = std::min(kBlockRows, g.m - i);
      for (std::int64_t r = 0; r < rows; r += kRows) {
        pack(packed_a.data + r * steps, a.data + (i + r) * a.row + p * a.column,
             std::min<std::int64_t>(kRows, rows - r), kRows, a.row, steps, a.column);
      }
      for (std::int64_t j = 0; j < g.n; j += width) {
        const std::int64_t columns = std::min(width, g.n - j);
        pack(packed_b.data, b.data + p * b.row + j * b.column, columns, width, b.column, steps,
             b.row);
        for (std::int64_t r = 0; r < rows; r += kRows) {
          T* tile = c + (i + r) * g.ldc + j;
          const T* panel = packed_a.data + r * steps;
          if (rows - r >= kRows && columns == width) {
            multiply_panels(panel, packed_b.data, steps, tile, g.ldc, add);
          } else {
            multiply_edge(panel, packed_b.data, steps, tile, g.ldc, add,
                          std::min<std::int64_t>(kRows, rows - r), columns);
          }
        }
      }
    }
  }
}

template <typename T>
void multiply_stored(const Gemm& g, const T* a, const T* b, T* c) {
  multiply(g, g.transpose_a ? Strided<T>{a, 1, g.lda} : Strided<T>{a, g.lda, 1},
           g.transpose_b ? Strided<T>{b, 1, g.ldb} : Strided<T>{b, g.ldb, 1}, c);
}

void multiply_f32(const Gemm& g, const float* a, const float* b, float* c) {
  multiply_stored(g, a, b, c);
}

void multiply_f64(const Gemm& g, const double* a, const double* b, double* c) {
  multiply_stored(g, a, b, c);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cohort::backend::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {
namespace {

HWY_EXPORT(multiply_f32);
HWY_EXPORT(multiply_f64);

// No steps to sum: the loops above would leave c as it is.
template <typename T>
bool is_empty_sum(const Gemm& g, T* c) {
  if (g.k > 0) return false;
  for (std::int64_t i = 0; i < g.m && !g.accumulate; ++i) std::fill_n(c + i * g.ldc, g.n, T{0});
  return true;
}

}  // namespace

void gemm_blocked(const Gemm& g, const float* a, const float* b, float* c) {
  if (!is_empty_sum(g, c)) HWY_DYNAMIC_DISPATCH(multiply_f32)(g, a, b, c);
}

void gemm_blocked(const Gemm& g, const double* a, const double* b, double* c) {
  if (!is_empty_sum(g, c)) HWY_DYNAMIC_DISPATCH(multiply_f64)(g, a, b, c);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
