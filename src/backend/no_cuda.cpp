// Stands in for backend/cuda where the build has no CUDA.

#include "backend/backend.h"
#include "cohort/core/error.h"

namespace cohort::backend {

bool cuda_is_built() {
  return false;
}

const Backend& cuda_backend() {
  throw NotSupported(
      "[device] cohort was built without CUDA: nvcc and the CUDA toolkit were not found, or "
      "COHORT_CUDA was OFF; rebuild with -DCOHORT_CUDA=ON to see what is missing");
}

}  // namespace cohort::backend
