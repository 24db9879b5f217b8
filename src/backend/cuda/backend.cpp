#include "backend/backend.h"

#include <cuda_runtime_api.h>

#include "backend/cuda/check.h"
#include "backend/cuda/families.h"
#include "backend/cuda/stream.h"
#include "cohort/core/error.h"

namespace cohort::backend {
namespace cuda {
namespace {

// The caching allocator above asks seldom, and hands blocks out in stream order itself. So plain
// cudaMalloc serves: its memory is no stream's own, and cudaFree waits for all that may use it.
class DeviceMemory final : public MemorySource {
 public:
  explicit DeviceMemory(int index) : index_(index) {}

  void* reserve(std::size_t bytes) override {
    const DeviceGuard guard(index_);
    void* data = nullptr;
    const cudaError_t code = cudaMalloc(&data, bytes);
    if (code == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return nullptr;
    }
    check_cuda(code, "cudaMalloc");
    return data;
  }

  void give_back(void* data, std::size_t) override { log_cuda(cudaFree(data), "cudaFree"); }

 private:
  const int index_;
};

class CudaBackend final : public Backend {
 public:
  std::string_view name() const override { return "cuda"; }

  int device_count() const override {
    int count = 0;
    return ask(count) == cudaSuccess ? count : 0;
  }

  std::string why_no_device() const override {
    int count = 0;
    const cudaError_t code = ask(count);
    if (code == cudaSuccess && count > 0) return {};
    return str("cudaGetDeviceCount says '", cudaGetErrorString(code), "' (", cudaGetErrorName(code),
               ") and found ", count,
               " GPUs; install NVIDIA's driver, or look at CUDA_VISIBLE_DEVICES");
  }

  std::unique_ptr<MemorySource> memory_source(int index) const override {
    return std::make_unique<DeviceMemory>(index);
  }

  Stream make_stream(int index, std::string name) const override {
    return Stream(make_intrusive<CudaStream>(index, std::move(name)));
  }

  void copy_bytes(const Stream& stream, void* to, const void* from,
                  std::size_t bytes) const override {
    if (bytes == 0) return;
    stream.launch([=, at = handle_of(stream)] {
      const DeviceGuard guard(at.device);
      // The addresses tell the direction. Pageable host memory is staged before the call returns.
      check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, at.stream), "cudaMemcpyAsync");
    });
  }

  const ElementwiseKernels& elementwise() const override { return elementwise_kernels(); }
  const ReduceKernels& reduce() const override { return reduce_kernels(); }
  const MatmulKernels& matmul() const override { return matmul_kernels(); }
  const ConvKernels& conv() const override { return conv_kernels(); }
  const NormKernels& norm() const override { return norm_kernels(); }
  const IndexKernels& index() const override { return index_kernels(); }
  const RandomKernels& random() const override { return random_kernels(); }
  const OptimKernels& optim() const override { return optim_kernels(); }

 private:
  static cudaError_t ask(int& count) {
    const cudaError_t code = cudaGetDeviceCount(&count);
    if (code != cudaSuccess) {
      count = 0;
      cudaGetLastError();
    }
    return code;
  }
};

}  // namespace
}  // namespace cuda

bool cuda_is_built() {
  return true;
}

const Backend& cuda_backend() {
  static const cuda::CudaBackend instance;
  return instance;
}

}  // namespace cohort::backend
