#pragma once

#include <cstdint>
#include <exception>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.h"

namespace cohort::comm {

// How a group ended, in words that all transports share.
enum class FailureKind : std::uint32_t { timeout, peer, mismatch };

struct Failure {
  FailureKind kind = FailureKind::peer;
  int origin = -1;  // the rank where it began
  std::string reason = {};
};

// Where the failure is told: this rank's place in its group.
struct Whereabouts {
  int rank = 0;
  int size = 1;
  const std::string& group;
  std::uint64_t sequence = 0;
};

// TimeoutError, PeerError or MismatchError: "[operation] reason (rank, group, sequence); hint".
std::exception_ptr make_error(const Failure& failure, Operation operation,
                              const Whereabouts& where);

// "rank 3", "ranks 1, 3"
std::string list_ranks(const std::vector<int>& ranks);

// FNV-1a over words: cheap, and only has to tell apart what differs by accident.
class Hash {
 public:
  Hash& add(std::uint64_t word) {
    value_ = (value_ ^ word) * 1099511628211u;
    value_ ^= value_ >> 32;
    return *this;
  }
  Hash& add(const char* bytes, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) add(static_cast<unsigned char>(bytes[i]));
    return *this;
  }
  std::uint64_t value() const { return value_; }

 private:
  std::uint64_t value_ = 14695981039346656037u;
};

// Of an owner's name, so many bytes count and travel, with a terminator.
inline constexpr std::size_t kOwnerBytes = 48;

// What must be equal on all ranks that come to a collective. Ranks send different amounts in an
// uneven all_to_all, whose counts are compared pair by pair.
std::uint64_t signature(const Call& call, std::uint64_t sequence, std::uint64_t counts_hash);
std::uint64_t hash_counts(std::span<const std::int64_t> counts);

// What one rank said when it came to a collective.
struct Said {
  std::uint64_t signature = 0;
  Call call = {};
};
// "rank 0 called …; ranks 1, 2 called …", by rank.
std::string describe_mismatch(std::span<const Said> said);

}  // namespace cohort::comm
