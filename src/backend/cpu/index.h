#pragma once

// The parts of the CPU's IndexKernels; they run at once in the calling thread.

#include "backend/index_kernels.h"

namespace cohort::backend::cpu {

void embedding(const View& out, const View& indices, const View& weight);
void embedding_backward(const GradView& grad_weight, const View& indices, const View& grad_out);

struct CrossEntropyArgs {
  View out;  // forward: the loss; backward: the gradient of the logits
  View lse, count, logits, targets;
  View grad_out;  // backward alone
  CrossEntropySpec spec;
};
void cross_entropy(const CrossEntropyArgs& args);
void cross_entropy_backward(const CrossEntropyArgs& args);

// Element i of a view of i64 or i32.
inline std::int64_t index_at(const View& view, std::int64_t i) {
  return view.dtype == DType::i64 ? view.as<const std::int64_t>()[i]
                                  : view.as<const std::int32_t>()[i];
}

}  // namespace cohort::backend::cpu
