#include "backend/backend.h"

#include <cstring>

#include "backend/cpu/families.h"
#include "backend/cpu/memory.h"

namespace cohort::backend {
namespace {

class CpuBackend final : public Backend {
 public:
  std::string_view name() const override { return "cpu"; }
  int device_count() const override { return 1; }
  std::unique_ptr<MemorySource> memory_source(int) const override { return make_host_memory(); }
  Stream make_stream(int, std::string name) const override {
    return make_inline_stream(std::move(name));
  }
  void copy_bytes(const Stream& stream, void* to, const void* from,
                  std::size_t bytes) const override {
    stream.launch([=] { std::memcpy(to, from, bytes); });
  }

  const ElementwiseKernels& elementwise() const override { return cpu::elementwise_kernels(); }
  const ReduceKernels& reduce() const override { return cpu::reduce_kernels(); }
  const MatmulKernels& matmul() const override { return cpu::matmul_kernels(); }
  const ConvKernels& conv() const override { return cpu::conv_kernels(); }
  const NormKernels& norm() const override { return cpu::norm_kernels(); }
  const IndexKernels& index() const override { return cpu::index_kernels(); }
  const RandomKernels& random() const override { return cpu::random_kernels(); }
  const OptimKernels& optim() const override { return cpu::optim_kernels(); }
};

}  // namespace

const Backend& cpu_backend() {
  static const CpuBackend instance;
  return instance;
}

}  // namespace cohort::backend
