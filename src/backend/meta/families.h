#pragma once

// The meta device computes nothing: shapes were worked out before a kernel is called.

#include "backend/backend.h"

namespace cohort::backend::meta {

const ElementwiseKernels& elementwise_kernels();
const ReduceKernels& reduce_kernels();
const MatmulKernels& matmul_kernels();
const ConvKernels& conv_kernels();
const NormKernels& norm_kernels();
const IndexKernels& index_kernels();
const RandomKernels& random_kernels();
const OptimKernels& optim_kernels();

}  // namespace cohort::backend::meta
