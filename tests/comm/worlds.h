#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <ostream>
#include <string>
#include <vector>

#include "cohort/comm/local_world.h"
#include "cohort/comm/store.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/shm/thread_link.h"
#include "comm/thread_ranks.h"

namespace cohort::test {

// The transports that tests of process groups run over, with threads as ranks.
enum class Over { shm, gloo, hierarchical };

inline const char* name(Over over) {
  return over == Over::shm ? "shm" : over == Over::gloo ? "gloo" : "hierarchical";
}
inline std::ostream& operator<<(std::ostream& out, Over over) {
  return out << name(over);
}

// True where this build has what `over` needs.
inline bool is_built(Over over) {
  if (over == Over::shm) return true;
  try {
    comm::gloo::check_gloo_is_built();
    return true;
  } catch (const NotSupported&) {
    return false;
  }
}

// All that are built.
inline std::vector<Over> transports() {
  std::vector<Over> built;
  for (const Over over : {Over::shm, Over::gloo, Over::hierarchical}) {
    if (is_built(over)) built.push_back(over);
  }
  return built;
}

// Lets threads through when all have come: a rank that fails at once must find the others past the
// making of the group, whose errors the tests do not expect.
class Gate {
 public:
  explicit Gate(int threads) : missing_(threads) {}
  void pass() {
    std::unique_lock lock(mutex_);
    --missing_;
    changed_.notify_all();
    changed_.wait_for(lock, std::chrono::minutes(1), [&] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int missing_;
};

// Ranks that are threads, connected as `over` says: over the loopback interface where that is not
// shm. `host_of` names each rank's host; ranks of one host share memory under Over::hierarchical.
// Empty: one host under Over::gloo, and hosts of two neighbours under Over::hierarchical.
class World {
 public:
  using Fn = std::function<void(const std::shared_ptr<comm::ProcessGroup>&)>;

  World(Over over, int size, comm::LocalWorldOptions options = {}, std::vector<int> host_of = {})
      : over_(over), size_(size), options_(options), host_of_(std::move(host_of)) {
    for (int r = static_cast<int>(host_of_.size()); r < size; ++r) {
      host_of_.push_back(over == Over::hierarchical ? r / 2 : 0);
    }
  }

  // All ranks have formed the group before `fn` begins on any, unless `together` is false.
  void run(const Fn& fn, bool together = true) const {
    if (over_ == Over::shm || size_ == 1) return comm::LocalWorld(size_, options_).run(fn);
    const comm::MemoryStore store;
    std::vector<std::shared_ptr<comm::shm::Hub>> hubs;
    for (int r = 0; r < size_; ++r) hubs.push_back(comm::shm::make_hub());
    Gate gate(size_);
    comm::run_thread_ranks(
        size_, options_, [&](int rank) { return make(*store.connect(), rank, hubs); },
        [&](const std::shared_ptr<comm::ProcessGroup>& group) {
          if (together) gate.pass();
          fn(group);
        });
  }

 private:
  std::unique_ptr<comm::Transport> make(
      comm::Store& store, int rank,
      const std::vector<std::shared_ptr<comm::shm::Hub>>& hubs) const {
    comm::gloo::GlooOptions options{.host_of = host_of_,
                                    .hierarchical = over_ == Over::hierarchical};
    const int host = host_of_[static_cast<std::size_t>(rank)];
    int place = 0;
    int ranks = 0;
    for (int r = 0; r < size_; ++r) {
      if (host_of_[static_cast<std::size_t>(r)] != host) continue;
      if (r < rank) ++place;
      ++ranks;
    }
    if (options.hierarchical && ranks > 1) {
      options.link =
          comm::shm::make_thread_link(hubs[static_cast<std::size_t>(host)], place, ranks);
    }
    return comm::gloo::make_gloo_transport(store, rank, size_, "world", options_.timeout, options);
  }

  Over over_;
  int size_;
  comm::LocalWorldOptions options_;
  std::vector<int> host_of_;
};

}  // namespace cohort::test
