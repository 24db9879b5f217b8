#include "backend/cpu/column_sum.h"

#include <algorithm>
#include <type_traits>

#include "backend/cpu/vector_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/column_sum.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu {
namespace HWY_NAMESPACE {
namespace {

// Columns that are summed together: 8 cache lines of floats, so that a row is read in long enough
// runs and both levels of sums stay in the L1 cache.
constexpr std::int64_t kColumns = 128;
// Rows of a block. Rounding errors grow with the rows of a block plus the number of blocks.
constexpr std::int64_t kBlock = 64;

// The compiler turns the loops over columns into vectors; each column is summed on its own, so the
// bits do not depend on how.
template <typename T, typename Sum>
void add_block(const T* HWY_RESTRICT a, std::int64_t rows, std::int64_t ld, std::int64_t columns,
               Sum* HWY_RESTRICT total) {
  Sum block[kColumns] = {};
  for (std::int64_t i = 0; i < rows; ++i) {
    const T* row = a + i * ld;
    if (columns == kColumns) {
      for (std::int64_t j = 0; j < kColumns; ++j) block[j] += static_cast<Sum>(row[j]);
    } else {
      for (std::int64_t j = 0; j < columns; ++j) block[j] += static_cast<Sum>(row[j]);
    }
  }
  for (std::int64_t j = 0; j < columns; ++j) total[j] += block[j];
}

template <typename T>
void sum_columns(const T* a, std::int64_t rows, std::int64_t columns, std::int64_t ld, T* out,
                 bool accumulate) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  for (std::int64_t j = 0; j < columns; j += kColumns) {
    const std::int64_t count = std::min(kColumns, columns - j);
    Sum total[kColumns] = {};
    for (std::int64_t i = 0; i < rows; i += kBlock) {
      add_block(a + i * ld + j, std::min(kBlock, rows - i), ld, count, total);
    }
    for (std::int64_t c = 0; c < count; ++c) {
      out[j + c] = static_cast<T>(accumulate ? static_cast<Sum>(out[j + c]) + total[c] : total[c]);
    }
  }
}

void sum_columns_any(DType dtype, const void* a, std::int64_t rows, std::int64_t columns,
                     std::int64_t ld, void* out, bool accumulate) {
  const auto run = [&](auto zero) {
    using T = decltype(zero);
    sum_columns(static_cast<const T*>(a), rows, columns, ld, static_cast<T*>(out), accumulate);
  };
  switch (dtype) {
    case DType::f64:
      return run(double{});
    case DType::bf16:
      return run(BFloat16{});
    case DType::f16:
      return run(Float16{});
    default:
      return run(float{});
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace cohort::backend::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(sum_columns_any);

void column_sum(DType dtype, const void* a, std::int64_t rows, std::int64_t columns,
                std::int64_t ld, void* out, bool accumulate) {
  HWY_DYNAMIC_DISPATCH(sum_columns_any)(dtype, a, rows, columns, ld, out, accumulate);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
