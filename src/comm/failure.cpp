#include "comm/failure.h"

#include <algorithm>
#include <bit>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

const char* hint(FailureKind kind) {
  switch (kind) {
    case FailureKind::timeout:
      return "; all ranks must call the same collectives; raise the timeout if a rank was only "
             "slow";
    case FailureKind::mismatch:
      return "; all ranks must call the same collectives, of equal size, in the same order";
    case FailureKind::peer:
      break;
  }
  return "; the group is unusable, form a new one";
}

}  // namespace

std::exception_ptr make_error(const Failure& failure, Operation operation,
                              const Whereabouts& where) {
  const std::string message =
      str('[', operation, "] ", failure.reason, " (rank ", where.rank, " of ", where.size,
          ", group '", where.group, "', sequence ", where.sequence, ')', hint(failure.kind));
  switch (failure.kind) {
    case FailureKind::timeout:
      return std::make_exception_ptr(TimeoutError(message));
    case FailureKind::mismatch:
      return std::make_exception_ptr(MismatchError(message));
    case FailureKind::peer:
      break;
  }
  return std::make_exception_ptr(PeerError(message, failure.origin));
}

std::string list_ranks(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

std::uint64_t signature(const Call& call, std::uint64_t sequence, std::uint64_t counts_hash) {
  const auto elements =
      call.operation == Operation::all_to_all ? 0 : static_cast<std::uint64_t>(call.elements);
  return Hash()
      .add(sequence)
      .add(static_cast<std::uint64_t>(call.operation) << 16 |
           static_cast<std::uint64_t>(call.reduce) << 8 | static_cast<std::uint64_t>(call.dtype))
      .add(elements)
      .add(static_cast<std::uint64_t>(call.peer))
      .add(std::bit_cast<std::uint64_t>(call.scale))
      .add(counts_hash)
      .add(call.owner.data(), std::min(call.owner.size(), kOwnerBytes - 1))
      .value();
}

std::uint64_t hash_counts(std::span<const std::int64_t> counts) {
  Hash hash;
  for (const std::int64_t count : counts) hash.add(static_cast<std::uint64_t>(count));
  return hash.value();
}

std::string describe_mismatch(std::span<const Said> said) {
  std::vector<std::pair<std::uint64_t, std::vector<int>>> groups;  // in order of their first rank
  for (std::size_t r = 0; r < said.size(); ++r) {
    auto found = std::find_if(groups.begin(), groups.end(),
                              [&](const auto& group) { return group.first == said[r].signature; });
    if (found == groups.end()) found = groups.insert(groups.end(), {said[r].signature, {}});
    found->second.push_back(static_cast<int>(r));
  }
  std::string reason;
  std::string first_text;
  bool same_text = true;
  for (const auto& [hash, ranks] : groups) {
    const std::string text = describe(said[static_cast<std::size_t>(ranks.front())].call);
    if (first_text.empty()) first_text = text;
    same_text = same_text && text == first_text;
    reason += str(reason.empty() ? "" : "; ", list_ranks(ranks), " called ", text);
  }
  return same_text ? reason + ", with different counts per rank" : reason;
}

}  // namespace cohort::comm
