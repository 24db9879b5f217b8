#include "backend/cuda/check.h"

#include <exception>
#include <string>
#include <string_view>

#include "cohort/core/error.h"
#include "cohort/core/logging.h"

namespace cohort::backend::cuda {
namespace {

const char* hint_for(cudaError_t code) {
  switch (code) {
    case cudaErrorNoDevice:
    case cudaErrorInsufficientDriver:
      return "install a driver that is at least as new as the toolkit of this build";
    case cudaErrorInvalidDevice:
      return "fewer GPUs are visible than asked for; look at CUDA_VISIBLE_DEVICES";
    case cudaErrorNoKernelImageForDevice:
      return "build for this GPU: -DCOHORT_CUDA_ARCHITECTURES";
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchFailure:
      return "a kernel failed earlier and the device is lost to this process; run under "
             "compute-sanitizer, or with CUDA_LAUNCH_BLOCKING=1 to find it";
    default:
      return "an earlier asynchronous call may be the cause; CUDA_LAUNCH_BLOCKING=1 tells";
  }
}

std::string_view file_name(std::string_view path) {
  return path.substr(path.rfind('/') + 1);
}

}  // namespace

void check_cuda(cudaError_t code, const char* call, const char* file, int line) {
  if (code == cudaSuccess) [[likely]] {
    return;
  }
  cudaGetLastError();
  const std::string text = str("[cuda] ", call, " failed: ", cudaGetErrorString(code), " (",
                               cudaGetErrorName(code), ", ", file_name(file), ":", line, ")");
  check<OutOfMemory>(code != cudaErrorMemoryAllocation, text,
                     "; use a smaller batch, or shard the model");
  throw Error(str(text, "; ", hint_for(code)));
}

void log_cuda(cudaError_t code, const char* call) noexcept {
  if (code == cudaSuccess || code == cudaErrorCudartUnloading) return;
  try {
    check_cuda(code, call);
  } catch (const std::exception& error) {
    try {
      logging::warn(error.what());
    } catch (...) {
      return;  // no memory to say it
    }
  }
}

DeviceGuard::DeviceGuard(int index) : index_(index) {
  check_cuda(cudaGetDevice(&previous_), "cudaGetDevice");
  if (previous_ != index_) check_cuda(cudaSetDevice(index_), "cudaSetDevice");
}

DeviceGuard::~DeviceGuard() {
  if (previous_ != index_) log_cuda(cudaSetDevice(previous_), "cudaSetDevice");
}

}  // namespace cohort::backend::cuda
