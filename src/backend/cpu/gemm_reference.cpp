#include "backend/cpu/gemm.h"

namespace cohort::backend::cpu {

void gemm(const Gemm& g, const float* a, const float* b, float* c) {
  gemm_blocked(g, a, b, c);
}

void gemm(const Gemm& g, const double* a, const double* b, double* c) {
  gemm_blocked(g, a, b, c);
}

}  // namespace cohort::backend::cpu
