#include "backend/meta/families.h"
#include "backend/optim_kernels.h"

namespace cohort::backend::meta {
namespace {

class MetaOptim final : public OptimKernels {};

}  // namespace

const OptimKernels& optim_kernels() {
  static const MetaOptim instance;
  return instance;
}

}  // namespace cohort::backend::meta
