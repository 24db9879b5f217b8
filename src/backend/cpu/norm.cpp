#include "backend/cpu/norm.h"

#include "backend/cpu/families.h"

namespace cohort::backend::cpu {
namespace {

class CpuNorm final : public NormKernels {
 public:
  void softmax(const Stream& stream, const View& out, const View& in, bool log) const override {
    stream.launch([=] { cpu::softmax(out, in, log); });
  }
  void softmax_backward(const Stream& stream, const View& grad_in, const View& grad_out,
                        const View& out, bool log) const override {
    stream.launch([=] { cpu::softmax_backward(grad_in, grad_out, out, log); });
  }
  void batch_norm(const Stream& stream, const View& out, const View& mean, const View& rstd,
                  const View& x, const View& weight, const View& bias, const RunningStats& running,
                  bool batch_stats, double eps) const override {
    stream.launch([args = BatchNormArgs{out, mean, rstd, x, weight, bias, running, batch_stats,
                                        eps}] { cpu::batch_norm(args); });
  }
  void batch_norm_backward(const Stream& stream, const View& grad_x, const GradView& grad_weight,
                           const GradView& grad_bias, const View& grad_out, const View& x,
                           const View& weight, const View& mean, const View& rstd,
                           bool batch_stats) const override {
    stream.launch(
        [args = NormBackwardArgs{grad_x, grad_weight, grad_bias, grad_out, x, weight, mean, rstd,
                                 batch_stats}] { cpu::batch_norm_backward(args); });
  }
  void batch_norm_moments(const Stream& stream, const View& moments, const View& x) const override {
    stream.launch([=] { cpu::batch_norm_moments(moments, x); });
  }
  void batch_norm_backward_sums(const Stream& stream, const View& sums, const GradView& grad_weight,
                                const GradView& grad_bias, const View& grad_out, const View& x,
                                const View& mean, const View& rstd) const override {
    stream.launch(
        [sums, args = NormBackwardArgs{View(), grad_weight, grad_bias, grad_out, x, View(), mean,
                                       rstd}] { cpu::batch_norm_backward_sums(sums, args); });
  }
  void batch_norm_backward_input(const Stream& stream, const View& grad_x, const View& grad_out,
                                 const View& x, const View& weight, const View& mean,
                                 const View& rstd, const View& sums, double count) const override {
    stream.launch(
        [sums, count,
         args = NormBackwardArgs{grad_x, GradView(), GradView(), grad_out, x, weight, mean, rstd}] {
          cpu::batch_norm_backward_input(sums, count, args);
        });
  }
  void layer_norm(const Stream& stream, const View& out, const View& mean, const View& rstd,
                  const View& x, const View& weight, const View& bias, double eps) const override {
    stream.launch([=] { cpu::layer_norm(out, mean, rstd, x, weight, bias, eps); });
  }
  void layer_norm_backward(const Stream& stream, const View& grad_x, const GradView& grad_weight,
                           const GradView& grad_bias, const View& grad_out, const View& x,
                           const View& weight, const View& mean, const View& rstd) const override {
    stream.launch([args = NormBackwardArgs{grad_x, grad_weight, grad_bias, grad_out, x, weight,
                                           mean, rstd}] { cpu::layer_norm_backward(args); });
  }
};

}  // namespace

const NormKernels& norm_kernels() {
  static const CpuNorm instance;
  return instance;
}

}  // namespace cohort::backend::cpu
