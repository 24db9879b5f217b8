#pragma once

#include "cohort/ops/ops.h"

// The operations that networks are written in, under the name PyTorch's users look for.
namespace cohort::nn::functional {

using cohort::avg_pool2d;
using cohort::batch_norm;
using cohort::conv2d;
using cohort::cross_entropy;
using cohort::dropout;
using cohort::embedding;
using cohort::gelu;
using cohort::layer_norm;
using cohort::linear;
using cohort::log_softmax;
using cohort::max_pool2d;
using cohort::mse_loss;
using cohort::relu;
using cohort::sigmoid;
using cohort::silu;
using cohort::softmax;
using cohort::tanh;

}  // namespace cohort::nn::functional
