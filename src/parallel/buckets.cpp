#include "parallel/buckets.h"

#include <algorithm>
#include <array>

#include "cohort/core/memory.h"

namespace cohort::parallel {
namespace {

// Consecutive items of one group and dtype.
struct Chunk {
  DType dtype;
  std::vector<int> items;
  double bytes = 0;
};

std::vector<Chunk> chunks_of(std::span<const BucketItem> items, std::span<const int> order) {
  std::vector<Chunk> chunks;
  // The open chunk of each dtype: a module may mix dtypes, whose chunks then run side by side.
  std::array<int, kDTypeCount> open{};
  open.fill(-1);
  int open_group = -1;
  for (const int index : order) {
    const BucketItem& item = items[static_cast<std::size_t>(index)];
    if (item.group != open_group) {
      open.fill(-1);
      open_group = item.group;
    }
    int& chunk = open[static_cast<std::size_t>(item.dtype)];
    if (chunk < 0) {
      chunk = static_cast<int>(chunks.size());
      chunks.push_back({.dtype = item.dtype, .items = {}});
    }
    Chunk& target = chunks[static_cast<std::size_t>(chunk)];
    target.items.push_back(index);
    target.bytes += static_cast<double>(item.numel) * static_cast<double>(item_size(item.dtype));
  }
  return chunks;
}

// The first chunk that belongs to the small last bucket; chunks.size() when there is none.
std::size_t tail_begin(const std::vector<Chunk>& chunks, double last_bytes) {
  if (last_bytes <= 0 || chunks.empty()) return chunks.size();
  double before = 0;
  for (const Chunk& chunk : chunks) before += chunk.bytes;
  std::size_t begin = chunks.size() - 1;
  double tail = chunks[begin].bytes;
  while (begin > 0 && tail + chunks[begin - 1].bytes <= last_bytes) tail += chunks[--begin].bytes;
  before -= tail;
  return before >= last_bytes ? begin : chunks.size();
}

}  // namespace

std::vector<std::vector<int>> assign_buckets(std::span<const BucketItem> items,
                                             std::span<const int> order, const BucketCaps& caps) {
  const std::vector<Chunk> chunks = chunks_of(items, order);
  const std::size_t tail = tail_begin(chunks, caps.last_bytes);

  struct Open {
    int bucket = -1;
    double bytes = 0;
  };
  std::vector<std::vector<int>> buckets;
  std::vector<std::size_t> last_chunk;  // of each bucket: when it will be ready
  std::array<Open, kDTypeCount> open{};
  for (std::size_t c = 0; c < chunks.size(); ++c) {
    if (c == tail) open.fill({});
    const Chunk& chunk = chunks[c];
    Open& current = open[static_cast<std::size_t>(chunk.dtype)];
    if (current.bucket < 0 || current.bytes + chunk.bytes > caps.bytes) {
      current = {static_cast<int>(buckets.size()), 0};
      buckets.emplace_back();
      last_chunk.push_back(c);
    }
    auto& bucket = buckets[static_cast<std::size_t>(current.bucket)];
    bucket.insert(bucket.end(), chunk.items.begin(), chunk.items.end());
    last_chunk[static_cast<std::size_t>(current.bucket)] = c;
    current.bytes += chunk.bytes;
  }

  std::vector<std::size_t> by_readiness(buckets.size());
  for (std::size_t i = 0; i < buckets.size(); ++i) by_readiness[i] = i;
  std::sort(by_readiness.begin(), by_readiness.end(),
            [&](std::size_t a, std::size_t b) { return last_chunk[a] < last_chunk[b]; });
  std::vector<std::vector<int>> sorted;
  sorted.reserve(buckets.size());
  for (const std::size_t i : by_readiness) sorted.push_back(std::move(buckets[i]));
  return sorted;
}

BucketLayout lay_out_bucket(std::span<const BucketItem> items, std::span<const int> bucket) {
  BucketLayout layout;
  for (const int index : bucket) {
    const BucketItem& item = items[static_cast<std::size_t>(index)];
    const auto unit = static_cast<std::int64_t>(kMemoryAlignment / item_size(item.dtype));
    layout.offsets.push_back(layout.elements);
    layout.elements += (item.numel + unit - 1) / unit * unit;
  }
  return layout;
}

}  // namespace cohort::parallel
