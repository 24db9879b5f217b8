#pragma once

// The CPU's implementation of each family of kernels; one file or group of files each.

#include "backend/backend.h"

namespace cohort::backend::cpu {

const ElementwiseKernels& elementwise_kernels();
const ReduceKernels& reduce_kernels();
const MatmulKernels& matmul_kernels();
const ConvKernels& conv_kernels();
const NormKernels& norm_kernels();
const IndexKernels& index_kernels();
const RandomKernels& random_kernels();
const OptimKernels& optim_kernels();

}  // namespace cohort::backend::cpu
