#include "backend/cpu/families.h"
#include "backend/reduce_kernels.h"

namespace cohort::backend::cpu {
namespace {

class CpuReduce final : public ReduceKernels {};

}  // namespace

const ReduceKernels& reduce_kernels() {
  static const CpuReduce instance;
  return instance;
}

}  // namespace cohort::backend::cpu
