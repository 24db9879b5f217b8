#include "backend/conv_kernels.h"
#include "backend/meta/families.h"

namespace cohort::backend::meta {
namespace {

class MetaConv final : public ConvKernels {
 public:
  void conv2d(const Stream&, const View&, const View&, const View&, const View&,
              const ConvSpec&) const override {}
  void conv2d_backward_data(const Stream&, const View&, const View&, const View&,
                            const ConvSpec&) const override {}
  void conv2d_backward_weight(const Stream&, const GradView&, const GradView&, const View&,
                              const View&, const ConvSpec&) const override {}
  void max_pool2d(const Stream&, const View&, const View&, const View&,
                  const WindowSpec&) const override {}
  void max_pool2d_backward(const Stream&, const View&, const View&, const View&) const override {}
  void avg_pool2d(const Stream&, const View&, const View&, const WindowSpec&) const override {}
  void avg_pool2d_backward(const Stream&, const View&, const View&,
                           const WindowSpec&) const override {}
};

}  // namespace

const ConvKernels& conv_kernels() {
  static const MetaConv instance;
  return instance;
}

}  // namespace cohort::backend::meta
