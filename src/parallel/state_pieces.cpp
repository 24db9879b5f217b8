#include "parallel/state_pieces.h"

#include <algorithm>
#include <set>
#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"

namespace cohort::parallel {
namespace {

// Large enough that a broadcast's fixed cost disappears, small beside what a rank holds.
constexpr std::int64_t kRoundBytes = std::int64_t{4} << 20;

// `count` elements of a contiguous tensor from its `first` one on, as a row.
Tensor elements_of(const Tensor& tensor, std::int64_t first, std::int64_t count) {
  return tensor.as_strided({count}, {1}, tensor.storage_offset() + (count > 0 ? first : 0));
}

bool same_memory(const Tensor& a, const Tensor& b) {
  return a.raw() == b.raw() && a.dtype() == b.dtype();
}

}  // namespace

StatePieces::StatePieces(const std::vector<nn::NamedTensor>& state) {
  for (const auto& [name, tensor] : state) {
    const Shape shape = tensor.defined() ? tensor.shape() : Shape{1};  // found to be undefined
    add({name, shape, 0, shape.product(), 0, tensor}, 0);
  }
}

StatePieces::StatePieces(std::span<const ShardedState> states) {
  for (std::size_t source = 0; source < states.size(); ++source) {
    for (const ShardedTensor& piece : states[source]) add(piece, static_cast<int>(source));
  }
}

void StatePieces::add(const ShardedTensor& piece, int source) {
  const auto [found, fresh] = pieces_.try_emplace(piece.name);
  if (fresh) names_.push_back(piece.name);
  std::vector<Piece>& pieces = found->second.pieces;
  const auto before = [](const Piece& a, const Piece& b) {
    return std::pair(a.part.begin, a.part.end) < std::pair(b.part.begin, b.part.end);
  };
  Piece entry{piece, source};
  pieces.insert(std::upper_bound(pieces.begin(), pieces.end(), entry, before), entry);
}

const ShardedTensor& StatePieces::example(const std::string& name) const {
  const std::vector<Piece>& pieces = pieces_.at(name).pieces;
  const auto full = std::find_if(pieces.begin(), pieces.end(), [](const Piece& piece) {
    return piece.part.tensor.defined() && piece.part.begin < piece.part.end;
  });
  return full == pieces.end() ? pieces.front().part : full->part;
}

std::string StatePieces::problems_of(const Named& named, const StateTarget& target) {
  const std::int64_t numel = target.shape.product();
  const std::string quoted = "; '" + target.name + "' ";
  std::string wrong;
  const Piece* last = nullptr;
  std::int64_t covered = target.part.begin;  // as far as from the target's begin on
  for (const Piece& piece : named.pieces) {
    const ShardedTensor& part = piece.part;
    if (!part.tensor.defined() && part.begin != part.end) return quoted + "is undefined";
    if (part.shape != target.shape) {
      return str(quoted, "has shape ", part.shape, " instead of ", target.shape);
    }
    if (part.begin < 0 || part.end < part.begin || part.end > numel) {
      return str(quoted, "has a part [", part.begin, ", ", part.end, ") of its ", numel,
                 " elements");
    }
    const std::int64_t given = part.tensor.defined() ? part.tensor.numel() : 0;
    if (given != part.end - part.begin) {
      return str(quoted, "has ", given, " elements in its part [", part.begin, ", ", part.end, ")");
    }
    if (part.begin == part.end) continue;
    if (last != nullptr && part.begin < last->part.end) {
      const bool replica = part.begin == last->part.begin && part.end == last->part.end;
      if (replica && piece.source != last->source) continue;
      wrong += replica ? str(quoted, "is there twice")
                       : str(quoted, "has parts that overlap: [", last->part.begin, ", ",
                             last->part.end, ") and [", part.begin, ", ", part.end, ")");
    }
    if (part.begin > covered && covered < target.part.end) {
      wrong += str(quoted, "lacks the elements [", covered, ", ",
                   std::min(part.begin, target.part.end), ")");
    }
    covered = std::max(covered, part.end);
    last = &piece;
  }
  if (covered < target.part.end) {
    wrong += str(quoted, "lacks the elements [", covered, ", ", target.part.end, ")");
  }
  return wrong;
}

std::string StatePieces::problems(const std::vector<StateTarget>& targets) const {
  std::set<std::string> wanted;
  for (const StateTarget& target : targets) wanted.insert(target.name);
  std::string wrong;
  for (const std::string& name : names_) {
    if (!wanted.contains(name)) wrong += str("; '", name, "' is unknown");
  }
  for (const StateTarget& target : targets) {
    const auto found = pieces_.find(target.name);
    wrong += found == pieces_.end() ? str("; '", target.name, "' is missing")
                                    : problems_of(found->second, target);
  }
  return wrong;
}

void StatePieces::fill(const StateTarget& target) const {
  if (target.part.size() == 0) return;
  const bool dense = target.tensor.is_contiguous();
  Tensor into = dense ? target.tensor.detach()
                      : Tensor::empty(target.tensor.shape(), target.tensor.options());
  const ShardedTensor* last = nullptr;
  for (const Piece& piece : pieces_.at(target.name).pieces) {
    const ShardedTensor& part = piece.part;
    const std::int64_t begin = std::max(part.begin, target.part.begin);
    const std::int64_t end = std::min(part.end, target.part.end);
    if (begin >= end) continue;
    if (last != nullptr && last->begin == part.begin && last->end == part.end) continue;
    last = &part;
    const Tensor source = part.tensor.detach().contiguous();
    const Tensor from = elements_of(source, begin - part.begin, end - begin);
    Tensor to = elements_of(into, begin - target.part.begin, end - begin);
    if (!same_memory(to, from)) to.copy_(from);
  }
  if (!dense) target.tensor.detach().copy_(into);
}

std::vector<StateTarget> fill_whole(const std::string& what, const StatePieces& pieces) {
  const MemoryCategoryScope category(MemoryCategory::other);
  std::vector<StateTarget> targets;
  for (const std::string& name : pieces.names()) {
    const Shape& shape = pieces.example(name).shape;
    targets.push_back({name, shape, {0, shape.product()}, {}});
  }
  const std::string wrong = pieces.problems(targets);
  check(wrong.empty(), "[", what, "] the state does not fit", wrong);
  for (StateTarget& target : targets) {
    const Tensor& example = pieces.example(target.name).tensor;
    const DType dtype = example.defined() ? example.dtype() : f32;
    target.tensor = Tensor::empty(target.shape, {.dtype = dtype});
    pieces.fill(target);
  }
  return targets;
}

void fill_from_rank0(comm::ProcessGroup& group, const StatePieces& pieces,
                     const std::vector<StateTarget>& targets) {
  const MemoryCategoryScope category(MemoryCategory::communication);
  const bool root = group.rank() == 0;
  for (const StateTarget& target : targets) {
    const std::int64_t numel = target.shape.product();
    if (numel == 0) continue;
    const DType dtype = target.tensor.dtype();
    const std::int64_t round =
        std::min(numel, kRoundBytes / static_cast<std::int64_t>(item_size(dtype)));
    const Tensor buffer = Tensor::empty({round}, target.tensor.options());
    // A whole tensor with strides of its own is not written in rows.
    const bool dense = target.tensor.is_contiguous();
    const Tensor into = dense ? target.tensor.detach()
                              : Tensor::empty(target.tensor.shape(), target.tensor.options());
    for (std::int64_t begin = 0; begin < numel; begin += round) {
      const std::int64_t count = std::min(round, numel - begin);
      const Tensor row = elements_of(buffer, 0, count);
      if (root) pieces.fill({target.name, target.shape, {begin, begin + count}, row});
      group.broadcast(row, 0, {.owner = target.name}).synchronize();
      const std::int64_t first = std::max(begin, target.part.begin);
      const std::int64_t last = std::min(begin + count, target.part.end);
      if (first >= last) continue;
      Tensor to = elements_of(into, first - target.part.begin, last - first);
      to.copy_(elements_of(row, first - begin, last - first));
    }
    if (!dense) target.tensor.detach().copy_(into);
  }
}

}  // namespace cohort::parallel
