#pragma once

#include <cuda_runtime_api.h>

namespace cohort::backend::cuda {

// Throws what `code` stands for, unless it is success: OutOfMemory, or Error with the call, CUDA's
// words, the caller's place (the compiler fills in `file` and `line`; Clang 14 cannot compile
// std::source_location) and a hint. CUDA's own note of the error is cleared: it must not turn up in
// a later call.
void check_cuda(cudaError_t code, const char* call, const char* file = __builtin_FILE(),
                int line = __builtin_LINE());

// For destructors: logs what check_cuda() would throw. A runtime that is being unloaded at the end
// of the process has freed everything itself.
void log_cuda(cudaError_t code, const char* call) noexcept;

// Makes a device the thread's current one until the scope ends.
class DeviceGuard {
 public:
  explicit DeviceGuard(int index);
  ~DeviceGuard();
  DeviceGuard(const DeviceGuard&) = delete;
  DeviceGuard& operator=(const DeviceGuard&) = delete;

 private:
  int previous_ = 0;
  int index_;
};

}  // namespace cohort::backend::cuda
