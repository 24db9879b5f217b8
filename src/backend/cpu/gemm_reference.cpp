#include "backend/cpu/gemm.h"

namespace cohort::backend::cpu {

void gemm(const Gemm& g, const float* a, const float* b, float* c, const float* bias) {
  gemm_blocked(start_from_bias(g, bias, c), a, b, c);
}

void gemm(const Gemm& g, const double* a, const double* b, double* c, const double* bias) {
  gemm_blocked(start_from_bias(g, bias, c), a, b, c);
}

}  // namespace cohort::backend::cpu
