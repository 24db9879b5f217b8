#pragma once

#include <exception>
#include <memory>
#include <optional>

#include "cohort/core/deadline.h"
#include "cohort/core/event.h"

namespace cohort::comm {

struct WorkState;

// When a collective passed its stations, by this rank's host clock. On CUDA `started` and
// `finished` are the device's marks, brought to the host's clock (docs/cuda.md says how exactly).
struct WorkTimes {
  Clock::time_point enqueued;  // the call
  Clock::time_point started;   // its turn in the rank's queue had come and its inputs were ready
  Clock::time_point finished;  // its outputs were written, or it failed
};

// A collective that was enqueued. A cheap handle; copies name the same work, and dropping the
// handle does not stop it (the tensors are kept alive by the queue). A default-constructed Work has
// finished. Thread-safe.
class Work {
 public:
  Work() = default;
  Work(std::shared_ptr<WorkState> state, Event done);

  // Makes work enqueued from now on on the context's current compute stream run after this. On the
  // CPU's inline stream that blocks the caller, and rethrows the collective's error (TimeoutError
  // when `timeout` passes first; the work goes on). On a queued stream the error surfaces when the
  // stream is synchronised, and `timeout` has no effect. On CUDA the device waits: an error
  // surfaces from synchronize(), error(), and the group's next call.
  void wait(std::optional<Milliseconds> timeout = {}) const;
  // Blocks the calling thread until the work is done; errors as above.
  void synchronize(std::optional<Milliseconds> timeout = {}) const;

  // True once it has finished or failed. Never blocks.
  bool ready() const { return done_.ready(); }
  // The error it ended with, or null. Only after ready().
  std::exception_ptr error() const;
  // Only after ready(); all zero for a default-constructed Work.
  WorkTimes times() const;
  // Marks the work's end, for other streams to wait on. The event carries no error.
  const Event& event() const { return done_; }

 private:
  std::shared_ptr<WorkState> state_;
  Event done_;
};

}  // namespace cohort::comm
