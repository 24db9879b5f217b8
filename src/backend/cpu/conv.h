#pragma once

// The parts of the CPU's ConvKernels. What takes a stream enqueues its work there; the rest runs at
// once in the calling thread.

#include "backend/conv_kernels.h"

namespace cohort::backend::cpu {

// Arguments of a convolution's three products. Forward: out, from x, weight, bias. Data: grad_x,
// from grad_out and weight. Weight: grad_weight and grad_bias, from grad_out and x.
struct ConvArgs {
  View out, x, weight, bias;
  View grad_x, grad_out;
  GradView grad_weight, grad_bias;
  ConvSpec spec;
};

// For every dtype: images unfolded to matrices, and GEMMs.
void conv2d_im2col(const ConvArgs& args);
void conv2d_backward_data_im2col(const ConvArgs& args);
void conv2d_backward_weight_im2col(const ConvArgs& args);

// The same by the library of this build. False, with nothing done, for what it does not cover.
bool conv2d_library(const Stream& stream, const ConvArgs& args);
bool conv2d_backward_data_library(const Stream& stream, const ConvArgs& args);
bool conv2d_backward_weight_library(const Stream& stream, const ConvArgs& args);

void max_pool2d(const View& out, const View& indices, const View& x, const WindowSpec& spec);
void max_pool2d_backward(const View& grad_x, const View& grad_out, const View& indices);
void avg_pool2d(const View& out, const View& x, const WindowSpec& spec);
void avg_pool2d_backward(const View& grad_x, const View& grad_out, const WindowSpec& spec);

}  // namespace cohort::backend::cpu
