#pragma once

#include <algorithm>
#include <cstdint>

namespace cohort::backend::cpu {

// c [m, n] = op(a) [m, k] op(b) [k, n], plus c when `accumulate`. Matrices are row-major; `lda`
// etc. are the distances between stored rows. A transposed operand is stored [k, m] or [n, k].
struct Gemm {
  std::int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false, transpose_b = false;
  std::int64_t lda = 0, ldb = 0, ldc = 0;
  bool accumulate = false;
};

// Single-threaded unless OMP_NUM_THREADS is set; bits depend on the Gemm alone. c is not read
// without `accumulate`. Thread-safe. A `bias` [n] is added to every row; not with `accumulate`.
void gemm(const Gemm& gemm, const float* a, const float* b, float* c, const float* bias = nullptr);
void gemm(const Gemm& gemm, const double* a, const double* b, double* c,
          const double* bias = nullptr);

// Our own kernel, for what no library covers and for sanitizers, which do not see into libraries.
void gemm_blocked(const Gemm& gemm, const float* a, const float* b, float* c);
void gemm_blocked(const Gemm& gemm, const double* a, const double* b, double* c);

// A product that adds to c, whose rows are set to the bias first: cheaper than a pass of its own
// afterwards, c being in the cache.
template <typename T>
Gemm start_from_bias(Gemm gemm, const T* bias, T* c) {
  if (bias == nullptr) return gemm;
  for (std::int64_t i = 0; i < gemm.m; ++i) std::copy_n(bias, gemm.n, c + i * gemm.ldc);
  gemm.accumulate = true;
  return gemm;
}

}  // namespace cohort::backend::cpu
