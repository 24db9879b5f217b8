#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/gloo/control.h"
#include "comm/gloo/mesh.h"

namespace cohort::comm::gloo {

// How long after a failure a connection that a peer may just be making stays open: closing it then
// would end the peer's program.
inline constexpr Milliseconds kSettling{2'000};

// One rank's part in a group: its collectives' begin and end, its waits for the others, and how all
// learn of a failure. The first failure stands; it closes the mesh, so that no peer's bytes reach
// this rank's tensors any more, wakes whoever waits, and is told to all peers.
//
// The rank's queue uses it; failed(), failure(), abort() and leave() may come from any thread.
class Member final : public Hearer {
 public:
  // `first_ranks[r]` is the number of rank r in the first group.
  Member(std::shared_ptr<Control> control, std::unique_ptr<Mesh> mesh, std::uint64_t id,
         std::vector<int> first_ranks, int rank, std::string group);
  ~Member() override;

  // Hears the peers from now on, and connects the mesh to theirs.
  void connect(Milliseconds timeout);

  int rank() const { return rank_; }
  int size() const { return size_; }
  std::uint64_t id() const { return id_; }
  const std::string& group() const { return group_; }
  const std::vector<int>& first_ranks() const { return first_ranks_; }
  // All ranks of the group, in order.
  std::vector<int> everybody() const;
  const std::shared_ptr<Control>& control() const { return control_; }
  Mesh& mesh() { return *mesh_; }

  // Called once, by whoever ends the group, after the mesh has been closed.
  void on_failure(std::function<void(const std::string& reason)> told);

  // This rank comes to a call, which starts its deadline. `sequence` counts the group's
  // collectives; sends and receives leave it as it is.
  void begin(const Call& call, std::uint64_t sequence);
  // `done`: without an error.
  void end(bool done);

  // Wait for one completion of what was posted to `buffer`, which `peer` has to bring about.
  void await_recv(Buffer& buffer, int peer) { await(buffer, peer, /*receives=*/true); }
  void await_send(Buffer& buffer, int peer) { await(buffer, peer, /*receives=*/false); }
  // Runs what posts to the mesh, whose errors are the group's.
  template <typename Post>
  void post(int peer, Post post);
  // For waits that are no Gloo's: whom this rank waits for.
  void show_awaited(int peer);
  void check_running();
  bool failed() const { return failed_.load(); }

  [[noreturn]] void fail(FailureKind kind, int origin, const std::string& reason);
  // Throws the failure that is on its way to this rank, or else one with this reason.
  [[noreturn]] void fail_unless_told(int origin, const std::string& reason);
  std::exception_ptr failure(Operation operation) const;
  void abort(const std::string& reason) noexcept;
  void abort_text_follows() noexcept;
  // Tells the peers, and waits a moment until they have what this rank sent.
  void leave() noexcept;

  void heard(int peer, const Word& word) override;
  void died(int peer, const std::string& how) override;
  bool tick() override;

 private:
  struct Peer {
    bool left = false;
    std::uint64_t left_at = 0;        // its last collective
    std::uint64_t left_sent = 0;      // messages that it had sent to this rank
    std::uint64_t left_received = 0;  // and had received
    std::uint64_t sent = 0;           // messages of this rank to it, the current one included
    std::uint64_t received = 0;
    bool has_all = false;  // it has all that this rank has sent
    bool wants_answer = false;
    std::string death;     // how, once it has died
    bool settled = false;  // its end of the connection is there, or will never be
    bool closed = false;   // the connection, by this rank
    std::string address;   // of its end of this rank's connection to it
    // Its last answer to "where are you", and what it has begun of this group.
    std::optional<Position> position;
    std::uint64_t begun = 0;
    bool answered = false;  // since the last question
  };

  // `connected` is told of each peer whose connection this rank has made.
  void connect_all(Milliseconds timeout, const std::function<void(int)>& connected);
  void await(Buffer& buffer, int peer, bool receives);
  bool record(const Failure& failure, bool tell) noexcept;
  void close_and_wake(const std::string& reason) noexcept;
  // After a failure: closes the connections to peers whose ends are settled, or all.
  void close_settled(bool all) noexcept;
  void tell(Word::Kind kind, const Failure& failure) noexcept;
  int rank_of(int first_rank) const;
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }
  const Peer& peer(int rank) const { return peers_[static_cast<std::size_t>(rank)]; }
  // These are called with the lock. Why waiting is in vain, if it is:
  std::optional<Failure> hopeless() const;
  Failure overdue() const;
  std::vector<int> culprits() const;
  std::string whereabouts(int rank) const;
  void ask_all();
  // Without it.
  void check_crossed(int rank);
  void hear_failure(const Word& word);
  void hear_leaving(int rank, const Word& word);
  void hear_where(int rank);
  void hear_here(int rank, const Word& word);

  const std::shared_ptr<Control> control_;
  const std::unique_ptr<Mesh> mesh_;
  const std::uint64_t id_;
  const std::vector<int> first_ranks_;
  const int rank_;
  const int size_;
  const std::string group_;
  std::atomic<bool> failed_{false};
  std::atomic<bool> left_{false};
  mutable std::mutex mutex_;  // guards what follows
  mutable std::condition_variable changed_;
  std::optional<Failure> failure_;
  Clock::time_point failed_at_{};
  int unwinding_ = -1;  // the rank whose text follows
  std::function<void(const std::string&)> told_;
  std::vector<Peer> peers_;
  std::optional<Call> call_;
  std::uint64_t sequence_ = 0;
  std::uint64_t completed_ = 0;
  Deadline deadline_ = Deadline::after(Milliseconds(0));
  Clock::time_point asked_{};
  bool overdue_ = false;  // the deadline has passed; the peers' answers are awaited
  Buffer* waiting_ = nullptr;
  bool waiting_receives_ = false;
  int awaited_ = -1;
  Call previous_ = {};  // the last collective that ended, for messages
  std::uint64_t previous_sequence_ = 0;
};

template <typename Post>
void Member::post(int peer, Post post) {
  check_running();
  try {
    post();
  } catch (const std::exception& error) {
    fail_unless_told(peer, error.what());
  }
}

}  // namespace cohort::comm::gloo
