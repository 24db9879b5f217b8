#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "cohort/core/stream.h"

namespace cohort {

// Runs any number of streams in one thread, one task at a time, in an order drawn from a seed: the
// same seed gives the same interleaving, so that a lost dependency between streams is found, and
// found again. Tasks run inside the host's own calls: after each enqueue a random number of tasks
// from random streams, and inside synchronize() as many as it takes.
//
// Confined to the thread that made it (a rank's host thread). Streams keep the scheduler alive.
class SeededScheduler {
 public:
  explicit SeededScheduler(std::uint64_t seed);
  ~SeededScheduler();

  // A queued stream; its tasks run only when the scheduler picks it.
  Stream make_stream(std::string name);
  // Number of tasks run so far, and a hash of the order they ran in: equal seeds and programs give
  // equal values.
  std::uint64_t steps() const;
  std::uint64_t order_hash() const;

  struct State;

 private:
  std::shared_ptr<State> state_;
};

}  // namespace cohort
