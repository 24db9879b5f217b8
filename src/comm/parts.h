#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "cohort/core/dtype.h"

namespace cohort::comm {

// The parts of a tensor that belong to the ranks, one behind the other.
struct Parts {
  std::vector<std::int64_t> counts;   // elements
  std::vector<std::int64_t> offsets;  // bytes
  std::int64_t item = 1;

  std::int64_t bytes(int rank) const { return counts[static_cast<std::size_t>(rank)] * item; }
  std::int64_t offset(int rank) const { return offsets[static_cast<std::size_t>(rank)]; }
  std::int64_t largest() const {  // bytes of the largest part
    return *std::max_element(counts.begin(), counts.end()) * item;
  }
};

inline Parts parts_of(std::span<const std::int64_t> counts, DType dtype) {
  Parts parts;
  parts.item = static_cast<std::int64_t>(item_size(dtype));
  std::int64_t offset = 0;
  for (const std::int64_t count : counts) {
    parts.counts.push_back(count);
    parts.offsets.push_back(offset);
    offset += count * parts.item;
  }
  return parts;
}

// Elements of a tensor of `count` that rank `rank` of `size` reduces: whole cache lines, as even as
// they go.
struct Share {
  std::int64_t begin;
  std::int64_t end;
};

inline Share share_of(std::int64_t count, std::int64_t item, int rank, int size) {
  const std::int64_t line = 64 / item;
  const std::int64_t each = ((count + size - 1) / size + line - 1) / line * line;
  return {std::min(count, each * rank), std::min(count, each * (rank + 1))};
}

// The shares as parts; beyond `sharers` ranks they are empty.
inline std::vector<std::int64_t> share_counts(std::int64_t count, std::int64_t item, int sharers,
                                              int size) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size), 0);
  for (int r = 0; r < sharers; ++r) {
    const Share share = share_of(count, item, r, sharers);
    counts[static_cast<std::size_t>(r)] = share.end - share.begin;
  }
  return counts;
}

}  // namespace cohort::comm
