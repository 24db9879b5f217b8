#include "backend/cpu/families.h"
#include "backend/optim_kernels.h"

namespace cohort::backend::cpu {
namespace {

class CpuOptim final : public OptimKernels {};

}  // namespace

const OptimKernels& optim_kernels() {
  static const CpuOptim instance;
  return instance;
}

}  // namespace cohort::backend::cpu
