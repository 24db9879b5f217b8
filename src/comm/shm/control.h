#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <type_traits>

#include "comm/failure.h"
#include "comm/shm/futex.h"
#include "comm/transport.h"

namespace cohort::comm::shm {

// What lies in a group's shared segment. Every part names who writes it; all-zero memory is a valid
// start. Layout of a segment: Header, RankSlot[W], counts[W][2][W], Channel[W][W] with their bytes,
// staging[W][kStagingSlots].

// One word per rank that everybody reads, its step, orders everything else: a rank writes its own
// parts, then publishes a step; who has seen the step may read them.

inline constexpr std::size_t kReasonBytes = 1000;

// A place in symmetric memory, equal on all ranks for equal parts of equal tensors.
struct Place {
  std::uint32_t block = 0;  // 0: not in symmetric memory
  std::uint64_t offset = 0;
  bool operator==(const Place&) const = default;
};

// What a rank says when it comes to a collective. Written by its rank before the entry step, read
// by all after it; rewritten two collectives later, when all have published the entry step of the
// one between and thus have read this one.
struct CallRecord {
  std::uint64_t sequence;
  std::uint64_t hash;  // of what must be equal on all ranks
  Operation operation;
  ReduceOp reduce;
  DType dtype;
  std::int64_t elements;
  std::int32_t peer;
  double scale;
  char owner[kOwnerBytes];
  Place out;  // where the operation may read and write the peers directly
  Place in;
  // allocate: this rank's free blocks of the wanted size, and whether it refuses.
  std::uint64_t free_blocks;
  bool refuses;
};

struct alignas(64) RankSlot {
  Word step;                                     // this rank's progress
  std::atomic<std::uint32_t> left;               // 1: the rank left in good order
  std::atomic<std::uint32_t> failed_allocation;  // outcome of the last reservation: 1 for failed
  CallRecord calls[2];                           // of even and of odd sequences
  // Of the family's first group only: where this rank is now, in any group. For messages, and for
  // seeing ranks that wait for each other in two groups.
  std::atomic<std::uint64_t> active_group;  // 0: in none
  std::atomic<std::uint64_t> active_sequence;
  std::atomic<std::uint32_t> active_operation;
};

// How a group failed. The first rank to move `state` from running to writing fills it.
struct FailureRecord {
  enum State : std::uint32_t {
    running,
    writing,
    complete,
    text_follows,  // plus the number of a rank that is unwinding, and will move on to writing
  };
  Word state;
  std::atomic<std::int32_t> origin;
  std::atomic<FailureKind> kind;
  char reason[kReasonBytes];  // terminated; written in `writing`, read in `complete`
};

struct alignas(64) Header {
  std::uint64_t id;  // random, by the creator; names the group in its family
  std::uint32_t size;
  FailureRecord failure;
};

// A ring of bytes from one rank to another. The positions count bytes, modulo 2^32.
struct Channel {
  Word written;  // by the sender
  Word read;     // by the receiver
};

static_assert(std::is_trivially_copyable_v<CallRecord>);

// Slots of staging per rank: three, so that a rank can fill the next while its peers read the last
// two (docs/collectives.md shows why two more steps cannot be behind).
inline constexpr int kStagingSlots = 3;

// Where the parts of a segment for `size` ranks lie.
class Layout {
 public:
  explicit Layout(int size);

  std::size_t bytes() const { return bytes_; }
  std::size_t slot_bytes() const { return slot_bytes_; }        // of one staging slot
  std::size_t channel_bytes() const { return channel_bytes_; }  // of one ring; a power of two

  Header& header(std::byte* base) const { return *reinterpret_cast<Header*>(base); }
  RankSlot& rank(std::byte* base, int rank) const {
    return reinterpret_cast<RankSlot*>(base + ranks_)[rank];
  }
  // Element counts of rank `rank`'s uneven all_to_all, by destination; by parity of the sequence.
  std::span<std::int64_t> counts(std::byte* base, int rank, std::uint64_t sequence) const;
  Channel& channel(std::byte* base, int from, int to) const {
    return reinterpret_cast<Channel*>(base + channels_)[from * size_ + to];
  }
  std::byte* ring(std::byte* base, int from, int to) const {
    return base + rings_ + static_cast<std::size_t>(from * size_ + to) * channel_bytes_;
  }
  std::byte* staging(std::byte* base, int rank, int slot) const {
    return base + staging_ + static_cast<std::size_t>(rank * kStagingSlots + slot) * slot_bytes_;
  }

 private:
  int size_;
  std::size_t channel_bytes_;
  std::size_t slot_bytes_;
  std::size_t ranks_;
  std::size_t counts_;
  std::size_t channels_;
  std::size_t rings_;
  std::size_t staging_;
  std::size_t bytes_;
};

}  // namespace cohort::comm::shm
