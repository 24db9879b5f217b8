#pragma once

// What is filled: fill, copy and accumulate of ElementwiseKernels (elementwise.cu). Everything else
// throws NotSupported, naming the operation (families.cpp).

#include "backend/backend.h"

namespace cohort::backend::cuda {

const ElementwiseKernels& elementwise_kernels();
const ReduceKernels& reduce_kernels();
const MatmulKernels& matmul_kernels();
const ConvKernels& conv_kernels();
const NormKernels& norm_kernels();
const IndexKernels& index_kernels();
const RandomKernels& random_kernels();
const OptimKernels& optim_kernels();

// Throws the NotSupported of an operation without a kernel.
[[noreturn]] void not_filled(const char* operation);

}  // namespace cohort::backend::cuda
