#include "backend/cpu/index.h"

#include "backend/cpu/families.h"

namespace cohort::backend::cpu {
namespace {

class CpuIndex final : public IndexKernels {
 public:
  void embedding(const Stream& stream, const View& out, const View& indices,
                 const View& weight) const override {
    stream.launch([=] { cpu::embedding(out, indices, weight); });
  }
  void embedding_backward(const Stream& stream, const GradView& grad_weight, const View& indices,
                          const View& grad_out) const override {
    stream.launch([=] { cpu::embedding_backward(grad_weight, indices, grad_out); });
  }
  void cross_entropy(const Stream& stream, const View& out, const View& lse, const View& count,
                     const View& logits, const View& targets,
                     const CrossEntropySpec& spec) const override {
    stream.launch([args = CrossEntropyArgs{out, lse, count, logits, targets, {}, spec}] {
      cpu::cross_entropy(args);
    });
  }
  void cross_entropy_backward(const Stream& stream, const View& grad_logits, const View& grad_out,
                              const View& logits, const View& targets, const View& lse,
                              const View& count, const CrossEntropySpec& spec) const override {
    stream.launch([args = CrossEntropyArgs{grad_logits, lse, count, logits, targets, grad_out,
                                           spec}] { cpu::cross_entropy_backward(args); });
  }
};

}  // namespace

const IndexKernels& index_kernels() {
  static const CpuIndex instance;
  return instance;
}

}  // namespace cohort::backend::cpu
