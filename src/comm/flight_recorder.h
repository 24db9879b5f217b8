#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cohort/comm/flight_recorder.h"
#include "cohort/core/context.h"
#include "comm/transport.h"

namespace cohort::comm {

inline constexpr std::size_t kFlightOwnerBytes = 48;

// What happens to a collective, in this order.
enum class FlightState : std::uint8_t { enqueued, started, finished, failed };
std::string_view name(FlightState state);

// One collective as the ring keeps it. Times are the nanoseconds of Clock; 0 for not yet.
struct FlightEntry {
  std::uint64_t sequence = 0;  // GroupRecord says what it counts
  std::int64_t enqueued = 0;
  std::int64_t started = 0;
  std::int64_t finished = 0;
  std::int64_t elements = 0;
  double scale = 1;
  std::uint32_t group = 0;
  std::int32_t peer = -1;
  Operation operation = Operation::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  std::uint8_t unused[5] = {};
  char owner[kFlightOwnerBytes] = {};
};

// Of one entry when the ring is read.
struct FlightRecord {
  std::uint64_t ticket = 0;  // counts the rank's collectives, from 1
  FlightState state = FlightState::enqueued;
  FlightEntry entry;
};

// The last collectives of a rank. A slot has one atomic word that says whose it is, how far that
// collective is, and whether somebody is writing; its other words may be read at any time and are
// believed when that word was even, and the same, before and after (a sequence lock).
//
// Two threads write: enqueue() is the rank's host thread, advance() the one that runs its
// collectives. They meet in a slot only when one is a whole ring behind the other; then the later
// one finds the word changed and leaves the slot alone. Nobody ever waits, and nothing is allocated
// after construction. Readers are any thread.
class FlightRing {
 public:
  explicit FlightRing(std::size_t size);

  // Gives the collective's ticket; 0 when it was not recorded.
  std::uint64_t enqueue(const FlightEntry& entry) noexcept;
  void advance(std::uint64_t ticket, FlightState to, Clock::time_point at) noexcept;

  std::size_t size() const { return slots_.size(); }
  std::uint64_t recorded() const { return tickets_.load(std::memory_order_relaxed); }
  // Those that are there now, the oldest first. One that is written at this moment may be missing.
  std::vector<FlightRecord> read() const;

 private:
  static constexpr std::size_t kWords = sizeof(FlightEntry) / sizeof(std::uint64_t);
  static_assert(sizeof(FlightEntry) % sizeof(std::uint64_t) == 0);

  struct alignas(64) Slot {
    std::atomic<std::uint64_t> word{0};  // ticket << 3 | state << 1 | writing
    std::atomic<std::uint64_t> words[kWords] = {};
  };

  Slot& slot(std::uint64_t ticket) { return slots_[ticket % slots_.size()]; }

  std::vector<Slot> slots_;
  std::atomic<std::uint64_t> tickets_{0};
};

// A group in the recorder's table. What is not const is atomic, or guarded by the recorder.
struct FlightGroup {
  std::uint32_t id = 0;
  std::string name = {};
  std::string backend = {};
  int rank = 0;
  std::vector<int> world_ranks = {};  // of the group's ranks
  std::atomic<std::uint64_t> collectives{0};
  bool left = false;
  std::string failure = {};  // the text of the error that ended it
};

// The flight recorder of a rank, shared by its groups and kept by its Runtime. Thread-safe.
class FlightRecorder {
 public:
  explicit FlightRecorder(FlightRecorderOptions options);
  // The runtime's, made with the options of the environment unless it is there already.
  static std::shared_ptr<FlightRecorder> of(Runtime& runtime);

  const FlightRecorderOptions& options() const { return options_; }
  // Null when nothing is recorded.
  FlightRing* ring() { return ring_.get(); }

  std::shared_ptr<FlightGroup> add(std::string name, std::string_view backend, int rank,
                                   std::vector<int> world_ranks, int runtime_rank);
  // The group is over, or this rank has left it. A file is written for the first failure of each
  // group, and when the last group was left.
  void note_failure(FlightGroup& group, const std::string& text) noexcept;
  void note_left(FlightGroup& group) noexcept;
  // The rank's program failed with an exception that is told to all groups, and that none of them
  // raised.
  void note_exception(const std::string& text) noexcept;
  // The text of the error that one collective ended with; the last few are kept.
  void note_error(std::uint64_t ticket, const std::string& text) noexcept;

  // The record as JSON (docs/hangs.md), for the reason given.
  std::string to_json(std::string_view reason) const;
  // The same, in a file that is replaced in one step. FileError.
  void write(const std::string& path, std::string_view reason) const;
  // To the trace folder, if there is one; what goes wrong is logged only. True when written.
  bool write_trace(std::string_view reason) const noexcept;
  // A line for each group: where this rank is.
  std::string summary() const;

 private:
  struct Snapshot;
  Snapshot snapshot() const;

  const FlightRecorderOptions options_;
  const std::unique_ptr<FlightRing> ring_;
  mutable std::mutex file_mutex_;  // one writer of the trace file at a time
  mutable std::mutex mutex_;       // guards what follows
  std::vector<std::shared_ptr<FlightGroup>> groups_;
  std::uint32_t next_group_ = 0;
  int rank_ = -1;  // unknown before the first group
  std::string exception_;
  std::deque<std::pair<std::uint64_t, std::string>> errors_;
};

// A group's side of the recorder: numbers its collectives and follows each from its call to its
// end. Collectives are counted from 1, as all ranks of the group do; a send or recv is the n-th
// from here to that peer, or from that peer to here.
class GroupRecord {
 public:
  GroupRecord(Runtime& runtime, std::string name, std::string_view backend, int rank, int size,
              std::vector<int> world_ranks);
  ~GroupRecord() { recorder_->note_left(*group_); }
  GroupRecord(const GroupRecord&) = delete;
  GroupRecord& operator=(const GroupRecord&) = delete;

  const std::vector<int>& world_ranks() const { return group_->world_ranks; }
  bool check_signatures() const { return recorder_->options().check_signatures; }

  // Host thread. The ticket is 0 for what is not recorded: groups of one, and recorders of size 0.
  std::uint64_t enqueue(const Call& call, Clock::time_point at) noexcept;
  // The thread that runs the collective.
  void started(std::uint64_t ticket, Clock::time_point at) noexcept {
    if (ticket != 0) recorder_->ring()->advance(ticket, FlightState::started, at);
  }
  void finished(std::uint64_t ticket, Clock::time_point at) noexcept {
    if (ticket != 0) recorder_->ring()->advance(ticket, FlightState::finished, at);
  }
  void failed(std::uint64_t ticket, Clock::time_point at, const std::string& error) noexcept;
  // The group has ended, for the reason given.
  void group_failed(const std::string& error) noexcept { recorder_->note_failure(*group_, error); }
  void rank_failed(const std::string& error) noexcept { recorder_->note_exception(error); }
  // This rank calls nothing any more. Only the first call counts.
  void left() noexcept { recorder_->note_left(*group_); }

 private:
  const std::shared_ptr<FlightRecorder> recorder_;
  const std::shared_ptr<FlightGroup> group_;
  FlightRing* const ring_;            // null when this group's collectives are not recorded
  std::vector<std::uint64_t> pairs_;  // sends to each peer, then receives from each
};

}  // namespace cohort::comm
