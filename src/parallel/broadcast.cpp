#include "parallel/broadcast.h"

#include <algorithm>

#include "backend/backend.h"
#include "cohort/core/context.h"

namespace cohort::parallel {
namespace {

// Tensors are packed up to 4 MiB: large enough that a broadcast's fixed cost (tens of microseconds)
// disappears, small enough to stay in a cache between packing and sending.
constexpr std::int64_t kPackBytes = std::int64_t{4} << 20;

std::int64_t padded(const Tensor& tensor) {
  constexpr auto unit = static_cast<std::int64_t>(kMemoryAlignment);
  return (static_cast<std::int64_t>(tensor.bytes()) + unit - 1) / unit * unit;
}

// Half-open ranges of tensors that travel together.
struct Pack {
  std::size_t begin;
  std::size_t end;
  std::int64_t bytes;
};

std::vector<Pack> make_packs(const std::vector<Tensor>& tensors) {
  std::vector<Pack> packs;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const std::int64_t bytes = padded(tensors[i]);
    if (packs.empty() || packs.back().bytes + bytes > kPackBytes) packs.push_back({i, i, 0});
    packs.back().end = i + 1;
    packs.back().bytes += bytes;
  }
  std::erase_if(packs, [](const Pack& pack) { return pack.bytes == 0; });
  return packs;
}

// `pack`, a flat tensor of bytes, seen as one of the tensors in it.
Tensor slot(const Tensor& pack, std::int64_t offset, const Tensor& like) {
  const auto size = static_cast<std::int64_t>(item_size(like.dtype()));
  return Tensor(make_intrusive<TensorImpl>(IntrusivePtr<Storage>(&pack.storage()), like.dtype(),
                                           like.shape(), contiguous_strides(like.shape()),
                                           offset / size));
}

void copy(const Tensor& to, const Tensor& from) {
  backend::backend_for(to.device().type)
      .elementwise()
      .copy(Context::current().stream(to.device()), to, from);
}

}  // namespace

int broadcast_coalesced(comm::ProcessGroup& group, const std::vector<Tensor>& tensors, int root,
                        const char* owner) {
  if (group.size() == 1) return 0;
  const std::vector<Pack> packs = make_packs(tensors);
  const MemoryCategoryScope category(MemoryCategory::communication);
  for (const Pack& pack : packs) {
    const Device device = tensors[pack.begin].device();
    const Tensor flat = Tensor::empty({pack.bytes}, {.dtype = u8, .device = device});
    const auto each = [&](auto&& fn) {
      std::int64_t offset = 0;
      for (std::size_t i = pack.begin; i < pack.end; ++i) {
        fn(tensors[i], slot(flat, offset, tensors[i]));
        offset += padded(tensors[i]);
      }
    };
    if (group.rank() == root) {
      each([](const Tensor& tensor, const Tensor& packed) { copy(packed, tensor); });
    }
    group.broadcast(flat, root, {.owner = owner}).wait();
    if (group.rank() != root) {
      each([](const Tensor& tensor, const Tensor& packed) { copy(tensor, packed); });
    }
  }
  return static_cast<int>(packs.size());
}

BroadcastCost broadcast_cost(const std::vector<Tensor>& tensors) {
  BroadcastCost cost;
  for (const Pack& pack : make_packs(tensors)) {
    ++cost.broadcasts;
    cost.bytes += pack.bytes;
  }
  return cost;
}

}  // namespace cohort::parallel
