#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace cohort::parallel {

// Where the parameters of a flat buffer lie, and which part of each one a rank owns. In elements.
//
// Parameters follow each other, each beginning on a multiple of `unit` elements; the whole is
// padded to a multiple of unit x ranks, at least one, and cut into equal ranges, one per rank.
class FlatLayout {
 public:
  // A half-open range.
  struct Range {
    std::int64_t begin = 0;
    std::int64_t end = 0;
    std::int64_t size() const { return end - begin; }
    bool operator==(const Range&) const = default;
  };

  FlatLayout() = default;
  FlatLayout(std::span<const std::int64_t> numels, std::int64_t unit, int ranks);

  std::int64_t total() const { return total_; }
  std::int64_t shard() const { return shard_; }  // of each rank
  std::int64_t offset(std::size_t parameter) const { return offsets_[parameter]; }
  std::int64_t numel(std::size_t parameter) const { return numels_[parameter]; }
  std::size_t size() const { return numels_.size(); }
  // The part of a parameter that `rank` owns, counted from the parameter's first element; empty
  // where it owns none.
  Range local(std::size_t parameter, int rank) const;

 private:
  std::vector<std::int64_t> numels_;
  std::vector<std::int64_t> offsets_;
  std::int64_t total_ = 0;
  std::int64_t shard_ = 0;
};

}  // namespace cohort::parallel
