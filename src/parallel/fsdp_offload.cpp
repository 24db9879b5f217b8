#include "parallel/fsdp_offload.h"

#include <memory>
#include <utility>

#include "backend/backend.h"
#include "cohort/core/context.h"
#include "cohort/parallel/fsdp.h"

namespace cohort::parallel {
namespace {

struct HostArena {
  std::shared_ptr<Allocator> allocator;
};

std::shared_ptr<Allocator> host_allocator() {
  return Context::current()
      .runtime()
      ->shared<HostArena>([] {
        return std::make_shared<HostArena>(HostArena{make_caching_allocator(
            Device::cpu(), backend::cpu_backend().memory_source(0), /*cache=*/true)});
      })
      ->allocator;
}

}  // namespace

Tensor host_row(std::int64_t elements, DType dtype, MemoryCategory category, Device computes) {
  const std::size_t bytes = static_cast<std::size_t>(elements) * item_size(dtype);
  const bool on_meta = computes.type == DeviceType::meta;
  Allocator::Block block;
  std::function<void()> free;
  if (bytes > 0 && !on_meta) {
    const std::shared_ptr<Allocator> allocator = host_allocator();
    block = allocator->allocate(bytes, Context::current().stream(Device::cpu()), category);
    free = [allocator, block] { allocator->free(block, nullptr, 0); };
  }
  auto storage = make_intrusive<Storage>(block.data, bytes, on_meta ? computes : Device::cpu(),
                                         std::move(free));
  return Tensor(make_intrusive<TensorImpl>(std::move(storage), dtype, Shape{elements}, Dims{1}, 0));
}

}  // namespace cohort::parallel

namespace cohort {

MemoryStats offloaded_memory_stats() {
  return parallel::host_allocator()->stats();
}

}  // namespace cohort
