#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "comm/reduce.h"

namespace cohort::comm {

// The order in which a group's values are combined: in rank order inside each host, then in host
// order, with nothing rounded between the two. Hosts are ordered by their lowest rank. Immutable.
class SumTree {
 public:
  // host_of[r] is any number that names the host of rank r.
  explicit SumTree(std::span<const int> host_of);

  // The ranks of each host, in order.
  const std::vector<std::vector<int>>& hosts() const { return hosts_; }
  // The host of rank r, and its place there.
  int host(int rank) const { return host_[static_cast<std::size_t>(rank)]; }
  int place(int rank) const { return place_[static_cast<std::size_t>(rank)]; }
  // The hosts' numbers by rank, from 0 in order: what the tree is made from.
  const std::vector<int>& host_of() const { return host_; }

  // destination = round(finish(combination of sources[r] over the ranks r)). `destination` may be
  // one of the sources.
  void reduce(void* destination, std::span<const void* const> sources, std::int64_t count,
              DType dtype, ReduceOp op, const Finish& finish) const;

 private:
  std::vector<std::vector<int>> hosts_;
  std::vector<int> host_;
  std::vector<int> place_;
  bool flat_;  // one level: a single host, or one rank on each
};

}  // namespace cohort::comm
