#include "backend/meta/families.h"
#include "backend/random_kernels.h"

namespace cohort::backend::meta {
namespace {

class MetaRandom final : public RandomKernels {
 public:
  void uniform(const Stream&, const View&, double, double, const PhiloxState&) const override {}
  void normal(const Stream&, const View&, double, double, const PhiloxState&) const override {}
  void dropout(const Stream&, const View&, const View&, double, const PhiloxState&) const override {
  }
};

}  // namespace

const RandomKernels& random_kernels() {
  static const MetaRandom instance;
  return instance;
}

}  // namespace cohort::backend::meta
