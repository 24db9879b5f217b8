#include "backend/meta/families.h"
#include "backend/random_kernels.h"

namespace cohort::backend::meta {
namespace {

class MetaRandom final : public RandomKernels {};

}  // namespace

const RandomKernels& random_kernels() {
  static const MetaRandom instance;
  return instance;
}

}  // namespace cohort::backend::meta
