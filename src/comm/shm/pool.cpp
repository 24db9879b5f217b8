#include "comm/shm/pool.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace cohort::comm::shm {
namespace {

constexpr std::size_t kPage = 4096;
constexpr int kCandidates = 64;  // as many as one word can name

}  // namespace

std::size_t SymmetricPool::slice_bytes(std::size_t requested) {
  const std::size_t unit = std::max(kPage, std::bit_floor(requested) / 8);
  return (requested + unit - 1) / unit * unit;
}

std::uint64_t SymmetricPool::free_blocks(std::size_t slice) const {
  const std::lock_guard lock(mutex_);
  std::uint64_t free = 0;
  int index = 0;
  for (const Block& block : blocks_) {
    if (block.slice != slice) continue;
    if (index == kCandidates) break;
    if (!block.used) free |= std::uint64_t{1} << index;
    ++index;
  }
  return free;
}

std::uint32_t SymmetricPool::take(std::size_t slice, int index) {
  const std::lock_guard lock(mutex_);
  std::uint32_t number = 0;
  for (Block& block : blocks_) {
    ++number;
    if (block.slice == slice && index-- == 0) {
      block.used = true;
      return number;
    }
  }
  return 0;
}

std::uint32_t SymmetricPool::add(std::shared_ptr<Mapping> segment, std::size_t slice) {
  const std::lock_guard lock(mutex_);
  const std::byte* own = segment->data() + static_cast<std::size_t>(rank_) * slice;
  blocks_.push_back({std::move(segment), slice, true});
  const auto number = static_cast<std::uint32_t>(blocks_.size());
  by_address_[own] = number;
  return number;
}

void SymmetricPool::give_back(std::uint32_t block) {
  const std::lock_guard lock(mutex_);
  blocks_[block - 1].used = false;
}

Place SymmetricPool::locate(const void* data, std::size_t bytes) const {
  const auto* address = static_cast<const std::byte*>(data);
  const std::lock_guard lock(mutex_);
  auto after = by_address_.upper_bound(address);
  if (after == by_address_.begin()) return {};
  const auto& [start, number] = *--after;
  const auto offset = static_cast<std::uint64_t>(address - start);
  const std::size_t slice = blocks_[number - 1].slice;
  if (offset > slice || bytes > slice - offset) return {};
  return {number, offset};
}

std::byte* SymmetricPool::at(Place place, int rank) const {
  const std::lock_guard lock(mutex_);
  const Block& block = blocks_[place.block - 1];
  return block.segment->data() + static_cast<std::size_t>(rank) * block.slice + place.offset;
}

}  // namespace cohort::comm::shm
