#pragma once

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/tensor.h"
#include "cohort/parallel/fsdp_state.h"
#include "parallel/flat_layout.h"

namespace cohort::parallel {

// A tensor, or this rank's part of one, that a state is to fill.
struct StateTarget {
  std::string name;
  Shape shape;             // of the whole tensor
  FlatLayout::Range part;  // of its elements, row-major
  Tensor tensor;           // these elements: a row, or the whole tensor in its own shape
};

// Parts of named tensors, however they were cut, to fill targets from that are cut otherwise.
class StatePieces {
 public:
  StatePieces() = default;
  explicit StatePieces(const std::vector<nn::NamedTensor>& state);
  explicit StatePieces(std::span<const ShardedState> states);
  // `source` tells the pieces of one state from those of another: within one, nothing may be there
  // twice; over several, equal parts are replicas, of which the first counts.
  void add(const ShardedTensor& piece, int source);
  bool empty() const { return pieces_.empty(); }
  // Names, in order of their first piece.
  const std::vector<std::string>& names() const { return names_; }
  // Any of the pieces of a name that is there; one with elements if there is one.
  const ShardedTensor& example(const std::string& name) const;

  // What keeps the targets from being filled: "; 'a' is missing; ...". Empty when nothing does.
  std::string problems(const std::vector<StateTarget>& targets) const;
  // Copies what the target wants; after problems() was empty.
  void fill(const StateTarget& target) const;

 private:
  struct Piece {
    ShardedTensor part;
    int source;
  };
  struct Named {
    std::vector<Piece> pieces;  // by begin, then end, then order of arrival
  };

  static std::string problems_of(const Named& named, const StateTarget& target);

  std::vector<std::string> names_;
  std::unordered_map<std::string, Named> pieces_;
};

// A tensor of its own for each name of the pieces, on the CPU, filled. InvalidArgument that begins
// with `what` and lists what is misshapen, uncovered, or overlaps.
std::vector<StateTarget> fill_whole(const std::string& what, const StatePieces& pieces);

// Collective. Fills the targets of all ranks from the pieces of rank 0, which cover the whole of
// each one (elsewhere they are not looked at). Tensors travel one by one, in parts of up to 4 MiB.
// The ranks' targets have the same names, shapes and dtypes, and parts of their own.
void fill_from_rank0(comm::ProcessGroup& group, const StatePieces& pieces,
                     const std::vector<StateTarget>& targets);

}  // namespace cohort::parallel
