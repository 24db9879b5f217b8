#include "backend/elementwise_kernels.h"
#include "backend/meta/families.h"

namespace cohort::backend::meta {
namespace {

class MetaElementwise final : public ElementwiseKernels {
 public:
  void fill(const Stream&, const View&, double) const override {}
  void copy(const Stream&, const View&, const View&) const override {}
};

}  // namespace

const ElementwiseKernels& elementwise_kernels() {
  static const MetaElementwise instance;
  return instance;
}

}  // namespace cohort::backend::meta
