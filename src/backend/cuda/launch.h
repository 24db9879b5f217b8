#pragma once

// The one place that starts kernels. A kernel is a function object called once for each index; what
// it does on the device it does in operator(), and nothing else of it is CUDA's. A simulation
// replaces this file and runs the same function objects in loops.

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "backend/cuda/check.h"
#include "backend/cuda/stream.h"

namespace cohort::backend::cuda {

template <typename Body>
__global__ void run_each(Body body, std::int64_t count) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  for (; i < count; i += step) body(i);
}

// Enqueues body(0) … body(count - 1), in any order. `name` is for messages.
template <typename Body>
void launch_each(StreamHandle at, std::int64_t count, const Body& body, const char* name) {
  static_assert(std::is_trivially_copyable_v<Body>);
  if (count == 0) return;
  constexpr std::int64_t kThreads = 256;
  // 16 million threads keep any GPU busy; a thread takes further elements in turn.
  constexpr std::int64_t kMostBlocks = 65536;
  const std::int64_t blocks = std::min(kMostBlocks, (count + kThreads - 1) / kThreads);
  const DeviceGuard guard(at.device);
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(kThreads));
  config.stream = at.stream;
  check_cuda(cudaLaunchKernelEx(&config, run_each<Body>, body, count), name);
}

}  // namespace cohort::backend::cuda
