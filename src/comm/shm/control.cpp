#include "comm/shm/control.h"

#include <algorithm>
#include <bit>

namespace cohort::comm::shm {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

// Rings share 4 MiB: 64 KiB each for up to 8 ranks, and never less than a page.
std::size_t ring_bytes(std::size_t size) {
  const std::size_t share = std::bit_floor((std::size_t{4} << 20) / (size * size));
  return std::clamp(share, kPage, std::size_t{64} << 10);
}

// A slot is large enough that its two steps (some 10 microseconds each, more where cores are busy)
// cost little beside its copies (some 100 for 1 MiB), and small enough that it fits into a 2 MiB L2
// cache together with what is copied into it. Many ranks share 16 MiB.
std::size_t staging_bytes(std::size_t size) {
  const std::size_t share = (std::size_t{16} << 20) / (size * kStagingSlots);
  return std::clamp(share / kPage * kPage, 4 * kPage, std::size_t{1} << 20);
}

}  // namespace

Layout::Layout(int size) : size_(size) {
  const auto n = static_cast<std::size_t>(size);
  channel_bytes_ = ring_bytes(n);
  slot_bytes_ = staging_bytes(n);
  ranks_ = round_up(sizeof(Header), 64);
  counts_ = ranks_ + n * sizeof(RankSlot);
  channels_ = round_up(counts_ + n * 2 * n * sizeof(std::int64_t), 64);
  rings_ = round_up(channels_ + n * n * sizeof(Channel), kPage);
  staging_ = rings_ + n * n * channel_bytes_;
  bytes_ = staging_ + n * kStagingSlots * slot_bytes_;
}

std::span<std::int64_t> Layout::counts(std::byte* base, int rank, std::uint64_t sequence) const {
  const auto n = static_cast<std::size_t>(size_);
  auto* first = reinterpret_cast<std::int64_t*>(base + counts_);
  return {first + (static_cast<std::size_t>(rank) * 2 + sequence % 2) * n, n};
}

}  // namespace cohort::comm::shm
