#include "comm/process_group_impl.h"

#include "cohort/core/error.h"
#include "cohort/core/logging.h"

namespace cohort::comm {
namespace {

// The same mark as another event, without its error: a collective whose inputs failed must still
// take its turn, to tell the peers, and must not take the queue down with it.
class QuietEvent final : public EventImpl {
 public:
  explicit QuietEvent(Event event) : event_(std::move(event)) {}

  bool ready() const override { return event_.ready(); }
  void synchronize(Deadline deadline) override {
    try {
      event_.synchronize(deadline);
    } catch (...) {
      if (!event_.ready()) throw;
    }
  }
  Clock::time_point completed_at() const override { return event_.completed_at(); }
  void* native() const override { return event_.impl()->native(); }

 private:
  const Event event_;
};

}  // namespace

void ProcessGroup::Impl::wait_quietly(const Stream& queue, const Event& inputs) {
  // An event of an inline stream marks nothing; devices' streams wait for their own kind.
  if (!inputs.impl()) return;
  queue.wait(Event(make_intrusive<QuietEvent>(inputs)));
}

void ProcessGroup::Impl::end_with(const std::exception_ptr& error, Operation operation) noexcept {
  if (transport_->failure(operation)) return;  // the peers know
  if (operation == Operation::allocate) {
    try {
      std::rethrow_exception(error);
    } catch (const OutOfMemory&) {
      return;  // agreed on by all ranks
    } catch (...) {
    }
  }
  transport_->abort(message_of(error));
}

std::string ProcessGroup::Impl::message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const std::exception& caught) {
    return caught.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

void ProcessGroup::Impl::record_end(const WorkState& state, Operation operation) noexcept {
  if (!state.error) {
    record_->finished(state.ticket, state.times.finished);
    return;
  }
  try {
    record_->failed(state.ticket, Clock::now(), message_of(state.error));
    // A refused allocation ends nothing.
    if (transport_->failure(operation)) record_failure(state.error);
  } catch (...) {
    return;  // no memory for the text
  }
}

void ProcessGroup::Impl::record_failure(const std::exception_ptr& error) noexcept {
  try {
    record_->group_failed(message_of(error));
  } catch (...) {
    return;  // no memory for the text
  }
}

void ProcessGroup::Impl::count(Operation operation, std::int64_t logical, std::int64_t moved,
                               const WorkTimes& times) {
  const std::lock_guard lock(mutex_);
  OperationStats& stats = stats_.operations[static_cast<std::size_t>(operation)];
  ++stats.count;
  stats.logical_bytes += logical;
  stats.moved_bytes += moved;
  stats.seconds += std::chrono::duration<double>(times.finished - times.started).count();
}

void ProcessGroup::Impl::remember(const Event& done) {
  const std::lock_guard lock(mutex_);
  last_ = done;
}

GroupStats ProcessGroup::Impl::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void ProcessGroup::Impl::reset_stats() {
  const std::lock_guard lock(mutex_);
  stats_ = {};
}

void ProcessGroup::Impl::drain_and_leave() noexcept {
  try {
    Event last;
    {
      const std::lock_guard lock(mutex_);
      last = std::exchange(last_, {});
    }
    // Inside one of the rank's own tasks there is no waiting for later ones: they own this object,
    // and the last of them leaves.
    if (Context::current().stream(Device::cpu()) == runtime_->task_stream()) return;
    last.synchronize(Deadline::after(kStreamTimeout));
  } catch (const std::exception& error) {
    logging::warn(str("[process_group] leaving group '", name_, "': ", error.what()));
  }
  if (const std::exception_ptr failed = transport_->failure(Operation::barrier)) {
    record_failure(failed);
  }
  transport_->leave();
  record_->left();
}

OperationStats GroupStats::total() const {
  OperationStats sum;
  for (const OperationStats& one : operations) {
    sum.count += one.count;
    sum.logical_bytes += one.logical_bytes;
    sum.moved_bytes += one.moved_bytes;
    sum.seconds += one.seconds;
  }
  return sum;
}

}  // namespace cohort::comm
