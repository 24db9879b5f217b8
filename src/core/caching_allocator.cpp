#include <algorithm>
#include <bit>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/memory.h"

namespace cohort {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Blocks of up to 1 KiB come in multiples of 64 bytes; beyond, eight sizes to each doubling, so
// that at most an eighth of a block is slack.
std::size_t size_class(std::size_t bytes) {
  if (bytes <= 1024) return round_up(bytes, kMemoryAlignment);
  return round_up(bytes, std::bit_floor(bytes) / 8);
}

struct CacheKey {
  std::uint64_t stream;
  std::size_t capacity;
  bool operator==(const CacheKey&) const = default;
};
struct CacheKeyHash {
  std::size_t operator()(const CacheKey& key) const {
    return (key.capacity + key.stream * 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
  }
};

class CachingAllocator final : public Allocator {
 public:
  CachingAllocator(Device device, std::unique_ptr<MemorySource> source, bool cache)
      : device_(device), source_(std::move(source)), cache_(cache) {}

  ~CachingAllocator() override {
    // Nobody can wait for the readers any more; the device is idle when its allocator goes.
    for (auto& [block, readers] : pending_) keep(block);
    drop_cached();
  }

  Block allocate(std::size_t bytes, const Stream& stream, MemoryCategory category) override {
    const std::size_t counted = round_up(std::max<std::size_t>(bytes, 1), kMemoryAlignment);
    const std::size_t capacity = size_class(counted);
    const std::lock_guard lock(mutex_);
    if (!pending_.empty()) collect_pending();
    if (limit_ > 0 && stats_.live_total + static_cast<std::int64_t>(counted) > limit_) {
      throw_out_of_memory(counted, str("the limit of ", limit_, " bytes"));
    }
    Block block{.data = take_cached(stream.id(), capacity),
                .bytes = counted,
                .capacity = capacity,
                .category = category,
                .stream = stream.id()};
    if (block.data) {
      ++stats_.cache_hits;
    } else {
      block.data = reserve(capacity, counted);
    }
    ++stats_.allocations;
    count(static_cast<std::int64_t>(counted), category);
    return block;
  }

  void free(const Block& block, const Event* readers, std::size_t count_readers) override {
    const std::lock_guard lock(mutex_);
    count(-static_cast<std::int64_t>(block.bytes), block.category);
    std::vector<Event> open;
    for (std::size_t i = 0; i < count_readers; ++i) {
      if (!readers[i].ready()) open.push_back(readers[i]);
    }
    if (open.empty()) {
      keep(block);
    } else {
      pending_.emplace_back(block, std::move(open));
    }
  }

  void count_external(std::int64_t bytes, MemoryCategory category) override {
    const std::lock_guard lock(mutex_);
    count(bytes, category);
  }

  MemoryStats stats() const override {
    const std::lock_guard lock(mutex_);
    return stats_;
  }

  void reset_peak() override {
    const std::lock_guard lock(mutex_);
    stats_.peak = stats_.live;
    stats_.at_peak = stats_.live;
    stats_.peak_total = stats_.live_total;
  }

  void set_limit(std::int64_t bytes) override {
    check(bytes >= 0, "[allocator] the limit must not be negative, got ", bytes);
    const std::lock_guard lock(mutex_);
    limit_ = bytes;
  }
  std::int64_t limit() const override {
    const std::lock_guard lock(mutex_);
    return limit_;
  }

  void release_cached() override {
    const std::lock_guard lock(mutex_);
    collect_pending();
    drop_cached();
  }

 private:
  // All of the following run under the mutex.

  void count(std::int64_t bytes, MemoryCategory category) {
    const auto c = static_cast<std::size_t>(category);
    stats_.live[c] += bytes;
    stats_.peak[c] = std::max(stats_.peak[c], stats_.live[c]);
    stats_.live_total += bytes;
    if (stats_.live_total > stats_.peak_total) {
      stats_.peak_total = stats_.live_total;
      stats_.at_peak = stats_.live;
    }
  }

  void* take_cached(std::uint64_t stream, std::size_t capacity) {
    const auto found = cached_.find({stream, capacity});
    if (found == cached_.end() || found->second.empty()) return nullptr;
    void* data = found->second.back();
    found->second.pop_back();
    return data;
  }

  void* reserve(std::size_t capacity, std::size_t counted) {
    // Twice the peak of what is live (and the slack of an eighth) is the most that is held: a
    // program whose sizes change every step must not collect blocks it never asks for again.
    const std::int64_t live = stats_.live_total + static_cast<std::int64_t>(counted);
    const std::int64_t bound = std::max(stats_.peak_total, live) / 4 * 9;
    if (stats_.reserved + static_cast<std::int64_t>(capacity) > bound) drop_cached();
    void* data = source_->reserve(capacity);
    if (!data) {
      drop_cached();
      data = source_->reserve(capacity);
    }
    if (!data) throw_out_of_memory(counted, "the device's memory");
    stats_.reserved += static_cast<std::int64_t>(capacity);
    return data;
  }

  void keep(const Block& block) {
    if (!cache_) {
      source_->give_back(block.data, block.capacity);
      stats_.reserved -= static_cast<std::int64_t>(block.capacity);
      return;
    }
    cached_[{block.stream, block.capacity}].push_back(block.data);
  }

  void drop_cached() {
    for (auto& [key, blocks] : cached_) {
      for (void* data : blocks) source_->give_back(data, key.capacity);
      stats_.reserved -= static_cast<std::int64_t>(key.capacity * blocks.size());
    }
    cached_.clear();
  }

  void collect_pending() {
    std::erase_if(pending_, [&](const auto& entry) {
      const bool all_ready = std::all_of(entry.second.begin(), entry.second.end(),
                                         [](const Event& event) { return event.ready(); });
      if (all_ready) keep(entry.first);
      return all_ready;
    });
  }

  [[noreturn]] void throw_out_of_memory(std::size_t bytes, const std::string& what) const {
    throw OutOfMemory(str("[allocate] ", bytes, " bytes on ", device_, " do not fit into ", what,
                          "; live memory by category:\n", to_string(stats_),
                          "hint: use a smaller batch, or shard the model"));
  }

  const Device device_;
  const std::unique_ptr<MemorySource> source_;
  const bool cache_;
  mutable std::mutex mutex_;  // guards what follows
  MemoryStats stats_;
  std::int64_t limit_ = 0;
  std::unordered_map<CacheKey, std::vector<void*>, CacheKeyHash> cached_;
  std::vector<std::pair<Block, std::vector<Event>>> pending_;
};

}  // namespace

std::string_view name(MemoryCategory category) {
  switch (category) {
    case MemoryCategory::parameters:
      return "parameters";
    case MemoryCategory::gradients:
      return "gradients";
    case MemoryCategory::optimizer:
      return "optimizer";
    case MemoryCategory::activations:
      return "activations";
    case MemoryCategory::communication:
      return "communication";
    case MemoryCategory::other:
      break;
  }
  return "other";
}

std::string to_string(const MemoryStats& stats) {
  std::string table;
  for (int i = 0; i < kMemoryCategoryCount; ++i) {
    const auto c = static_cast<std::size_t>(i);
    table += str("  ", name(static_cast<MemoryCategory>(i)), ": ", stats.live[c], " bytes (peak ",
                 stats.peak[c], ")\n");
  }
  return table + str("  total: ", stats.live_total, " bytes (peak ", stats.peak_total, ")\n");
}

std::unique_ptr<Allocator> make_caching_allocator(Device device,
                                                  std::unique_ptr<MemorySource> source,
                                                  bool cache) {
  return std::make_unique<CachingAllocator>(device, std::move(source), cache);
}

}  // namespace cohort
