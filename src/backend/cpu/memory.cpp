#include "backend/cpu/memory.h"

#include <sys/mman.h>

#include <cstdlib>

namespace cohort::backend {
namespace {

// Large blocks come from mmap with huge pages asked for: a first touch of 4 KiB pages costs about
// a millisecond per MiB on virtual machines, one of a 2 MiB page a fraction of that.
constexpr std::size_t kHugePage = std::size_t{2} << 20;

class HostMemory final : public MemorySource {
 public:
  void* reserve(std::size_t bytes) override {
    if (bytes < kHugePage) return std::aligned_alloc(kMemoryAlignment, bytes);
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    madvise(data, bytes, MADV_HUGEPAGE);  // a wish: its failure costs only time
    return data;
  }

  void give_back(void* data, std::size_t bytes) override {
    if (bytes < kHugePage) {
      std::free(data);
    } else {
      munmap(data, bytes);
    }
  }
};

}  // namespace

std::unique_ptr<MemorySource> make_host_memory() {
  return std::make_unique<HostMemory>();
}

}  // namespace cohort::backend
