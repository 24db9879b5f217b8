#include "backend/backend.h"

#include "backend/meta/families.h"

namespace cohort::backend {
namespace {

// Addresses that nobody reads: the allocator above does the accounting.
class NoMemory final : public MemorySource {
 public:
  void* reserve(std::size_t) override { return this; }
  void give_back(void*, std::size_t) override {}
};

class MetaBackend final : public Backend {
 public:
  std::string_view name() const override { return "meta"; }
  int device_count() const override { return 1; }
  std::unique_ptr<MemorySource> memory_source(int) const override {
    return std::make_unique<NoMemory>();
  }
  Stream make_stream(int, std::string name) const override {
    return make_inline_stream(std::move(name));
  }
  void copy_bytes(const Stream&, void*, const void*, std::size_t) const override {}

  const ElementwiseKernels& elementwise() const override { return meta::elementwise_kernels(); }
  const ReduceKernels& reduce() const override { return meta::reduce_kernels(); }
  const MatmulKernels& matmul() const override { return meta::matmul_kernels(); }
  const ConvKernels& conv() const override { return meta::conv_kernels(); }
  const NormKernels& norm() const override { return meta::norm_kernels(); }
  const IndexKernels& index() const override { return meta::index_kernels(); }
  const RandomKernels& random() const override { return meta::random_kernels(); }
  const OptimKernels& optim() const override { return meta::optim_kernels(); }
};

}  // namespace

const Backend& meta_backend() {
  static const MetaBackend instance;
  return instance;
}

}  // namespace cohort::backend
