#include "backend/meta/families.h"
#include "backend/norm_kernels.h"

namespace cohort::backend::meta {
namespace {

class MetaNorm final : public NormKernels {
 public:
  void softmax(const Stream&, const View&, const View&, bool) const override {}
  void softmax_backward(const Stream&, const View&, const View&, const View&, bool) const override {
  }
  void batch_norm(const Stream&, const View&, const View&, const View&, const View&, const View&,
                  const View&, const RunningStats&, bool, double) const override {}
  void batch_norm_backward(const Stream&, const View&, const GradView&, const GradView&,
                           const View&, const View&, const View&, const View&, const View&,
                           bool) const override {}
  void batch_norm_moments(const Stream&, const View&, const View&) const override {}
  void batch_norm_backward_sums(const Stream&, const View&, const GradView&, const GradView&,
                                const View&, const View&, const View&, const View&) const override {
  }
  void batch_norm_backward_input(const Stream&, const View&, const View&, const View&, const View&,
                                 const View&, const View&, const View&, double) const override {}
  void layer_norm(const Stream&, const View&, const View&, const View&, const View&, const View&,
                  const View&, double) const override {}
  void layer_norm_backward(const Stream&, const View&, const GradView&, const GradView&,
                           const View&, const View&, const View&, const View&,
                           const View&) const override {}
};

}  // namespace

const NormKernels& norm_kernels() {
  static const MetaNorm instance;
  return instance;
}

}  // namespace cohort::backend::meta
