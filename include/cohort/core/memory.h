#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "cohort/core/device.h"
#include "cohort/core/stream.h"

namespace cohort {

// What memory is used for. Set by MemoryCategoryScope; new storage is counted under it.
enum class MemoryCategory : std::uint8_t {
  parameters,
  gradients,
  optimizer,
  activations,
  communication,
  other,
};
inline constexpr int kMemoryCategoryCount = 6;
std::string_view name(MemoryCategory category);

// Bytes as the program asked for them, each rounded up to kMemoryAlignment.
struct MemoryStats {
  std::array<std::int64_t, kMemoryCategoryCount> live{};
  std::array<std::int64_t, kMemoryCategoryCount> peak{};  // of each category on its own
  std::int64_t live_total = 0;
  std::int64_t peak_total = 0;
  // By category at the moment of peak_total.
  std::array<std::int64_t, kMemoryCategoryCount> at_peak{};
  std::int64_t reserved = 0;  // held from the device: live blocks and cached ones, as rounded
  std::int64_t allocations = 0;
  std::int64_t cache_hits = 0;
};

// A cache line of x86 and Arm and the width of an AVX-512 register.
inline constexpr std::size_t kMemoryAlignment = 64;

// Memory of one device for one rank: cached, counted by category, and limited.
//
// Free blocks are kept by the stream they were allocated on, and handed out again on the same
// stream without waiting: the stream's order keeps the two users apart. A block used on further
// streams is held until their events have passed. Thread-safe.
class Allocator {
 public:
  virtual ~Allocator() = default;

  struct Block {
    void* data = nullptr;
    std::size_t bytes = 0;     // as counted
    std::size_t capacity = 0;  // as reserved
    MemoryCategory category = MemoryCategory::other;
    std::uint64_t stream = 0;
  };

  // At least `bytes`, aligned to kMemoryAlignment, uninitialised. OutOfMemory, naming what holds
  // the memory, when the limit or the device is exhausted.
  virtual Block allocate(std::size_t bytes, const Stream& stream, MemoryCategory category) = 0;
  // Returns a block. `readers` are events of other streams' last uses, `count` of them.
  virtual void free(const Block& block, const Event* readers, std::size_t count) = 0;
  // Counts memory that somebody else allocated (symmetric memory, say); never fails.
  virtual void count_external(std::int64_t bytes, MemoryCategory category) = 0;

  virtual MemoryStats stats() const = 0;
  // Peaks become the live values.
  virtual void reset_peak() = 0;
  // Upper bound of live_total in bytes; 0 for none.
  virtual void set_limit(std::int64_t bytes) = 0;
  virtual std::int64_t limit() const = 0;
  // Gives cached blocks back to the device.
  virtual void release_cached() = 0;
};

// Where an Allocator gets its memory from: the device's own calls.
struct MemorySource {
  virtual ~MemorySource() = default;
  // Null when the device has no more.
  virtual void* reserve(std::size_t bytes) = 0;
  virtual void give_back(void* data, std::size_t bytes) = 0;
};

// The caching allocator over `source`. `device` is for messages. With `cache` false it keeps no
// free blocks.
std::unique_ptr<Allocator> make_caching_allocator(Device device,
                                                  std::unique_ptr<MemorySource> source,
                                                  bool cache = true);

// A table of `stats` by category, for error messages and reports.
std::string to_string(const MemoryStats& stats);

}  // namespace cohort
