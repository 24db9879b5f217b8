#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cohort/comm/store.h"
#include "cohort/core/deadline.h"
#include "comm/store_socket.h"
#include "comm/transport.h"

namespace cohort::comm::gloo {

// A word from rank to rank beside the data: about failures, leaving, and where a rank is.
struct Word {
  enum class Kind : std::uint8_t {
    addresses,     // where the receiver's connection of a new group goes
    settled,       // the sender has connected to the receiver, or never will
    failure,       // the group has failed, and why
    text_follows,  // a rank is unwinding; its failure comes in a moment
    leaving,       // the sender calls nothing any more
    received,      // answer: the sender has all that the leaving rank has sent
    where,         // question: where are you?
    here,          // answer
    goodbye,       // the connection is about to close in good order
  };
  Kind kind = Kind::where;
  std::uint64_t group = 0;
  std::string body = {};
};

// A group that hears what its peers say. Called by the control's thread only, one at a time.
class Hearer {
 public:
  virtual ~Hearer() = default;
  virtual void heard(int peer, const Word& word) = 0;
  // The connection of `peer` has ended without a goodbye.
  virtual void died(int peer, const std::string& how) = 0;
  // Some 10 times a second; true asks for the next call sooner.
  virtual bool tick() = 0;
};

// Where a rank is, whatever the group: a rank runs one collective at a time.
struct Position {
  std::uint64_t group = 0;  // 0: in no collective
  std::uint64_t sequence = 0;
  Operation operation = Operation::barrier;
  std::int32_t awaited = -1;  // whom it waits for, as a rank of the first group
};

// One rank's connections to all others of its first group, apart from those that carry tensors, and
// the thread that listens to them. Groups that are split from the first share it. Peers are
// numbered by their ranks in the first group. The thread sees a peer's death at once, and watches
// over deadlines. Thread-safe.
class Control {
 public:
  // All ranks call it at the same time with the same store; each listens on its own `address`.
  // TimeoutError, naming the missing ranks.
  Control(Store& store, int rank, int size, const std::string& address, Deadline deadline);
  // Says goodbye.
  ~Control();
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;

  int rank() const { return rank_; }
  int size() const { return size_; }
  // The addresses that the ranks listen on.
  const std::vector<std::string>& addresses() const { return addresses_; }

  // From now on `hearer` hears words about `group`; first those that came too early.
  void add(std::uint64_t group, Hearer* hearer);
  // When it returns, nobody is calling the hearer any more. Not from a hearer.
  void remove(std::uint64_t group);
  // Queues the word; never blocks.
  void say(int peer, Word word);
  // The hearer of `group`, or null. Only from a hearer.
  Hearer* find(std::uint64_t group);

  void set_position(const Position& position);
  void set_awaited(std::int32_t peer);
  Position position() const;

 private:
  struct Peer {
    UniqueFd socket;
    std::string in;  // the thread's own
    std::string out;
    bool closing = false;  // said goodbye
  };

  void meet(Store& store, const std::string& address, Deadline deadline);
  void run();
  void flush(Peer& peer);
  void read(int rank);
  void take_words(int rank);
  void lose(int rank, const std::string& how);
  bool all_flushed();
  void wake();

  const int rank_;
  const int size_;
  std::vector<std::string> addresses_;
  std::vector<Peer> peers_;
  UniqueFd wake_;
  std::mutex out_mutex_;   // guards Peer::out
  std::mutex hear_mutex_;  // guards what follows, and is held while a hearer is called
  std::map<std::uint64_t, Hearer*> hearers_;
  std::set<std::uint64_t> removed_;
  std::map<std::uint64_t, std::vector<std::pair<int, Word>>> early_;
  std::map<int, std::string> dead_;
  mutable std::mutex position_mutex_;
  Position position_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace cohort::comm::gloo
