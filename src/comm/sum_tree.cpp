#include "comm/sum_tree.h"

#include <algorithm>
#include <map>

namespace cohort::comm {
namespace {

// Elements combined at a time: 8 KiB of the widest type for each host stay in the caches.
constexpr std::int64_t kChunk = 1024;

}  // namespace

SumTree::SumTree(std::span<const int> host_of) {
  std::map<int, int> number_of;  // by the caller's name of a host
  for (std::size_t r = 0; r < host_of.size(); ++r) {
    const auto [found, added] =
        number_of.try_emplace(host_of[r], static_cast<int>(number_of.size()));
    if (added) hosts_.emplace_back();
    std::vector<int>& ranks = hosts_[static_cast<std::size_t>(found->second)];
    host_.push_back(found->second);
    place_.push_back(static_cast<int>(ranks.size()));
    ranks.push_back(static_cast<int>(r));
  }
  flat_ = hosts_.size() == 1 || hosts_.size() == host_.size();
}

void SumTree::reduce(void* destination, std::span<const void* const> sources, std::int64_t count,
                     DType dtype, ReduceOp op, const Finish& finish) const {
  if (flat_) return comm::reduce({&destination, 1}, sources, count, dtype, op, finish);
  const auto item = static_cast<std::int64_t>(item_size(dtype));
  const std::size_t room = kChunk * item_size(partial_dtype(dtype));
  std::vector<std::byte> memory(room * hosts_.size());
  std::vector<const void*> partials;
  for (std::size_t h = 0; h < hosts_.size(); ++h) partials.push_back(memory.data() + h * room);
  std::vector<const void*> of_host;
  for (std::int64_t at = 0; at < count; at += kChunk) {
    const std::int64_t n = std::min(kChunk, count - at);
    for (std::size_t h = 0; h < hosts_.size(); ++h) {
      of_host.clear();
      for (const int r : hosts_[h]) {
        of_host.push_back(static_cast<const std::byte*>(sources[static_cast<std::size_t>(r)]) +
                          at * item);
      }
      reduce_to_partial(memory.data() + h * room, of_host, n, dtype, op);
    }
    reduce_partials(static_cast<std::byte*>(destination) + at * item, partials, n, dtype, op,
                    finish);
  }
}

}  // namespace cohort::comm
