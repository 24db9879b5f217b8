#include "backend/cpu/families.h"
#include "backend/random_kernels.h"

namespace cohort::backend::cpu {
namespace {

class CpuRandom final : public RandomKernels {};

}  // namespace

const RandomKernels& random_kernels() {
  static const CpuRandom instance;
  return instance;
}

}  // namespace cohort::backend::cpu
