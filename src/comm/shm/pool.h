#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>

#include "comm/shm/control.h"
#include "comm/shm/mapping.h"

namespace cohort::comm::shm {

// The symmetric memory of one group on one rank: blocks of one slice per rank, which all ranks map,
// added in the same order on all of them and so numbered alike. Thread-safe.
class SymmetricPool {
 public:
  explicit SymmetricPool(int rank) : rank_(rank) {}

  // Bytes of the slices that serve a request: whole pages, at most an eighth of slack.
  static std::size_t slice_bytes(std::size_t requested);

  // Which of the first 64 blocks with slices of `slice` bytes are free on this rank.
  std::uint64_t free_blocks(std::size_t slice) const;
  // Takes the `index`-th of those blocks, and returns its number.
  std::uint32_t take(std::size_t slice, int index);
  // Adds a block, in use.
  std::uint32_t add(std::shared_ptr<Mapping> segment, std::size_t slice);
  void give_back(std::uint32_t block);

  // Where in the pool `bytes` at `data` lie; block 0 when they do not.
  Place locate(const void* data, std::size_t bytes) const;
  // The same place in the slice of `rank`.
  std::byte* at(Place place, int rank) const;

 private:
  struct Block {
    std::shared_ptr<Mapping> segment;
    std::size_t slice;
    bool used;
  };

  const int rank_;
  mutable std::mutex mutex_;  // guards what follows
  std::deque<Block> blocks_;  // block n is blocks_[n - 1]; never removed
  std::map<const std::byte*, std::uint32_t> by_address_;  // of this rank's slices
};

}  // namespace cohort::comm::shm
