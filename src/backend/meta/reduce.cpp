#include "backend/meta/families.h"
#include "backend/reduce_kernels.h"

namespace cohort::backend::meta {
namespace {

class MetaReduce final : public ReduceKernels {};

}  // namespace

const ReduceKernels& reduce_kernels() {
  static const MetaReduce instance;
  return instance;
}

}  // namespace cohort::backend::meta
