#include "parallel/flat_layout.h"

#include <algorithm>

namespace cohort::parallel {
namespace {

std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return (value + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout::FlatLayout(std::span<const std::int64_t> numels, std::int64_t unit, int ranks)
    : numels_(numels.begin(), numels.end()) {
  for (const std::int64_t numel : numels_) {
    offsets_.push_back(total_);
    total_ += round_up(numel, unit);
  }
  // Never empty, so that its gradients and collectives are none of a special kind.
  total_ = round_up(std::max(total_, std::int64_t{1}), unit * ranks);
  shard_ = total_ / ranks;
}

FlatLayout::Range FlatLayout::local(std::size_t parameter, int rank) const {
  const std::int64_t begin = shard_ * rank - offsets_[parameter];
  const std::int64_t numel = numels_[parameter];
  return {std::clamp<std::int64_t>(begin, 0, numel),
          std::clamp<std::int64_t>(begin + shard_, 0, numel)};
}

}  // namespace cohort::parallel
