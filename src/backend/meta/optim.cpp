#include "backend/meta/families.h"
#include "backend/optim_kernels.h"

namespace cohort::backend::meta {
namespace {

class MetaOptim final : public OptimKernels {
 public:
  void sgd(const Stream&, const View&, const View&, const View&, const SgdParams&) const override {}
  void adam(const Stream&, const View&, const View&, const View&, const View&, const View&,
            const AdamParams&) const override {}
  void unscale(const Stream&, const View&, const View&, double) const override {}
};

}  // namespace

const OptimKernels& optim_kernels() {
  static const MetaOptim instance;
  return instance;
}

}  // namespace cohort::backend::meta
