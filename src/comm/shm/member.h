#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "comm/shm/control.h"
#include "comm/shm/family.h"
#include "comm/shm/link.h"
#include "comm/shm/mapping.h"

namespace cohort::comm::shm {

// One rank's part in a group: its steps, its waits for the others, and how all learn of a failure.
//
// Collectives are sequences of steps that are the same on all ranks. publish() says that this rank
// has done its next step; await() returns when all ranks have done as many. Waits end in one of the
// group's errors when a peer died or left, the deadline passed, or the group has failed already.
//
// The rank's queue uses it; failed(), failure(), abort() and leave() may come from any thread.
class Member {
 public:
  // Where a group's ranks lie: `family_ranks[r]` is the number of rank r in the first group.
  Member(std::shared_ptr<Mapping> segment, std::shared_ptr<Link> link,
         std::shared_ptr<Family> family, std::vector<int> family_ranks, int rank,
         std::string group);

  int rank() const { return rank_; }
  int size() const { return size_; }
  const std::string& group() const { return group_; }
  std::uint64_t id() const { return id_; }
  const Layout& layout() const { return layout_; }
  std::byte* base() const { return segment_->data(); }
  RankSlot& slot(int rank) const { return layout_.rank(base(), rank); }
  Link& link() const { return *link_; }
  const std::shared_ptr<Link>& shared_link() const { return link_; }
  const std::shared_ptr<Family>& family() const { return family_; }
  const std::vector<int>& family_ranks() const { return family_ranks_; }

  // Says what this rank does from now on, for messages and for its peers, and starts its deadline.
  // `sequence` counts the collectives of the group; sends and receives leave it as it is. `call`
  // outlives end().
  void begin(const Call& call, std::uint64_t sequence);
  void end();

  void publish() { slot(rank_).step.publish(++step_); }
  // Waits until all ranks have published as many steps as this rank.
  void await() { await(step_); }
  // …or as many as this rank had at `step`.
  void await(std::uint32_t step);
  std::uint32_t step() const { return step_; }
  // Waits for a word that only `peer` publishes.
  template <typename Reached>
  std::uint32_t await_word(Word& word, int peer, Reached reached);

  // For waits of another kind: throws when waiting for `peer` is in vain.
  void look_at(int peer) {
    check_running();
    look_around({peer});
  }
  // Throws the group's failure, if it has one: called between chunks, so that a rank that was
  // stopped and resumed after the others gave up writes no further into their memory.
  void check_running();
  bool failed() const { return header().failure.state.load() != FailureRecord::running; }
  std::exception_ptr failure(Operation operation) const;

  // Ends the group, if it runs, and throws its failure: the first that was recorded.
  [[noreturn]] void fail(FailureKind kind, int origin, const std::string& reason);
  void record_failure(FailureKind kind, int origin, const std::string& reason) noexcept;
  void abort(const std::string& reason) noexcept;
  void abort_text_follows() noexcept;
  void leave() noexcept;

 private:
  Header& header() const { return layout_.header(base()); }
  bool behind(int rank, std::uint32_t step) const {
    return static_cast<std::int32_t>(slot(rank).step.load() - step) < 0;
  }
  // One look at the state of things while waiting for `peers`; throws when waiting is in vain.
  void look_around(const std::vector<int>& missing);
  void check_departed(int peer);
  void check_crossed(int peer);
  [[noreturn]] void time_out(const std::vector<int>& missing);
  std::vector<int> missing_at(std::uint32_t step) const;
  void wake_everybody() const;
  std::string describe_whereabouts(int peer) const;

  const std::shared_ptr<Mapping> segment_;
  const std::shared_ptr<Link> link_;
  const std::shared_ptr<Family> family_;
  const std::vector<int> family_ranks_;
  const int rank_;
  const int size_;
  const std::string group_;
  const Layout layout_;
  const std::uint64_t id_;
  const std::chrono::nanoseconds spin_;

  std::uint32_t step_ = 0;
  std::atomic<std::uint64_t> sequence_{0};
  const Call* call_ = nullptr;
  Deadline deadline_ = Deadline::after(Milliseconds(0));
  Call previous_;  // the last collective that ended, for messages
  std::uint64_t previous_sequence_ = 0;
};

// How long a sleeping waiter goes without a look at its peers: a death is noticed after this.
inline constexpr Milliseconds kWaitSlice{20};

template <typename Reached>
std::uint32_t Member::await_word(Word& word, int peer, Reached reached) {
  std::uint32_t seen = word.load();
  if (reached(seen)) return seen;
  if (spin_.count() > 0) {
    const auto until = Clock::now() + spin_;
    do {
      seen = word.load();
      if (reached(seen)) return seen;
    } while (Clock::now() < until);
  }
  auto next_look = Clock::now() + kWaitSlice;
  for (;;) {
    // In this order: a peer's last step comes before its leaving.
    const bool left = slot(peer).left.load(std::memory_order_acquire) != 0;
    seen = word.load();
    if (reached(seen)) return seen;
    check_running();
    if (left) check_departed(peer);
    if (Clock::now() >= next_look) {
      look_around({peer});
      next_look = Clock::now() + kWaitSlice;
    }
    word.sleep(seen, kWaitSlice);
  }
}

}  // namespace cohort::comm::shm
