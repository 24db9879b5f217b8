#pragma once

// The parts of the CPU's NormKernels, one file each; they run at once in the calling thread.

#include "backend/norm_kernels.h"

namespace cohort::backend::cpu {

void softmax(const View& out, const View& in, bool log);
void softmax_backward(const View& grad_in, const View& grad_out, const View& out, bool log);

struct BatchNormArgs {
  View out, mean, rstd, x, weight, bias;
  RunningStats running;
  bool batch_stats = true;
  double eps = 0;
};
void batch_norm(const BatchNormArgs& args);

struct NormBackwardArgs {
  View grad_x;
  GradView grad_weight, grad_bias;
  View grad_out, x, weight, mean, rstd;
  bool batch_stats = true;  // of batch_norm
};
void batch_norm_backward(const NormBackwardArgs& args);

// The steps of them for a part of a batch. Of the arguments, each step takes what it needs.
void batch_norm_moments(const View& moments, const View& x);
void batch_norm_backward_sums(const View& sums, const NormBackwardArgs& args);
void batch_norm_backward_input(const View& sums, double count, const NormBackwardArgs& args);

void layer_norm(const View& out, const View& mean, const View& rstd, const View& x,
                const View& weight, const View& bias, double eps);
void layer_norm_backward(const NormBackwardArgs& args);

}  // namespace cohort::backend::cpu
