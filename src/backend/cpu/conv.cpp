#include "backend/cpu/conv.h"

#include "backend/cpu/families.h"

namespace cohort::backend::cpu {
namespace {

class CpuConv final : public ConvKernels {
 public:
  void conv2d(const Stream& stream, const View& out, const View& x, const View& weight,
              const View& bias, const ConvSpec& spec) const override {
    ConvArgs args;
    args.out = out;
    args.x = x;
    args.weight = weight;
    args.bias = bias;
    args.spec = spec;
    if (conv2d_library(stream, args)) return;
    stream.launch([args] { conv2d_im2col(args); });
  }
  void conv2d_backward_data(const Stream& stream, const View& grad_x, const View& grad_out,
                            const View& weight, const ConvSpec& spec) const override {
    ConvArgs args;
    args.grad_x = grad_x;
    args.grad_out = grad_out;
    args.weight = weight;
    args.spec = spec;
    if (conv2d_backward_data_library(stream, args)) return;
    stream.launch([args] { conv2d_backward_data_im2col(args); });
  }
  void conv2d_backward_weight(const Stream& stream, const GradView& grad_weight,
                              const GradView& grad_bias, const View& grad_out, const View& x,
                              const ConvSpec& spec) const override {
    ConvArgs args;
    args.grad_weight = grad_weight;
    args.grad_bias = grad_bias;
    args.grad_out = grad_out;
    args.x = x;
    args.spec = spec;
    if (conv2d_backward_weight_library(stream, args)) return;
    stream.launch([args] { conv2d_backward_weight_im2col(args); });
  }

  void max_pool2d(const Stream& stream, const View& out, const View& indices, const View& x,
                  const WindowSpec& spec) const override {
    stream.launch([=] { cpu::max_pool2d(out, indices, x, spec); });
  }
  void max_pool2d_backward(const Stream& stream, const View& grad_x, const View& grad_out,
                           const View& indices) const override {
    stream.launch([=] { cpu::max_pool2d_backward(grad_x, grad_out, indices); });
  }
  void avg_pool2d(const Stream& stream, const View& out, const View& x,
                  const WindowSpec& spec) const override {
    stream.launch([=] { cpu::avg_pool2d(out, x, spec); });
  }
  void avg_pool2d_backward(const Stream& stream, const View& grad_x, const View& grad_out,
                           const WindowSpec& spec) const override {
    stream.launch([=] { cpu::avg_pool2d_backward(grad_x, grad_out, spec); });
  }
};

}  // namespace

const ConvKernels& conv_kernels() {
  static const CpuConv instance;
  return instance;
}

}  // namespace cohort::backend::cpu
