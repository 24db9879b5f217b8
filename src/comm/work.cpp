#include "cohort/comm/work.h"

#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "comm/work_state.h"

namespace cohort::comm {

Work::Work(std::shared_ptr<WorkState> state, Event done)
    : state_(std::move(state)), done_(std::move(done)) {}

void Work::synchronize(std::optional<Milliseconds> timeout) const {
  if (!state_) return;
  const Milliseconds patience = timeout.value_or(state_->patience);
  try {
    done_.synchronize(Deadline::after(patience));
  } catch (const TimeoutError&) {
    throw TimeoutError(str("[", state_->operation, "] not finished after ", patience.count(),
                           " ms; it goes on: wait again, or abort the group"));
  }
  state_->rethrow();
}

void Work::wait(std::optional<Milliseconds> timeout) const {
  if (!state_) return;
  const Stream& compute = Context::current().stream(state_->device);
  if (compute.native() != nullptr) {
    // The device waits, not the host; an error surfaces when the work is synchronised with.
    compute.wait(done_);
    return;
  }
  if (compute.runs_inline()) {
    synchronize(timeout);
    return;
  }
  compute.wait(done_);
  compute.launch([state = state_] { state->rethrow(); });
}

std::exception_ptr Work::error() const {
  return state_ && ready() ? state_->error : nullptr;
}

WorkTimes Work::times() const {
  if (!state_ || !ready()) return {};
  WorkTimes times = state_->times;
  if (state_->begun.impl() != nullptr && done_.impl() != nullptr) {
    times.started = state_->begun.completed_at();
    times.finished = done_.completed_at();
  }
  return times;
}

}  // namespace cohort::comm
