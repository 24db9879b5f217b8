#pragma once

#include <algorithm>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cohort/comm/process_group.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "comm/flight_recorder.h"
#include "comm/link_delay_state.h"
#include "comm/transport.h"
#include "comm/work_state.h"

namespace cohort::comm {

// The group proper. Queued collectives own it, so it outlives the handle until they are done.
class ProcessGroup::Impl final : public FailureListener,
                                 public std::enable_shared_from_this<ProcessGroup::Impl> {
 public:
  Impl(std::unique_ptr<Transport> transport, std::shared_ptr<Runtime> runtime, std::string name,
       Milliseconds timeout, std::vector<int> world_ranks)
      : transport_(std::move(transport)),
        runtime_(std::move(runtime)),
        name_(std::move(name)),
        timeout_(timeout),
        link_delay_(LinkDelay::of(*runtime_)),
        record_(std::make_shared<GroupRecord>(*runtime_, name_, transport_->name(),
                                              transport_->rank(), transport_->size(),
                                              std::move(world_ranks))) {}
  ~Impl() override { transport_->leave(); }

  Transport& transport() { return *transport_; }
  const Transport& transport() const { return *transport_; }
  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }
  const std::string& name() const { return name_; }
  Milliseconds timeout() const { return timeout_; }
  Device device() const { return transport_->device(); }
  const std::vector<int>& world_ranks() const { return record_->world_ranks(); }

  // Enqueues `body`, called as body(Transport&, const Call&) and returning the bytes it moved, on
  // the rank's queue, after what the current compute stream holds. `body` owns what it touches.
  // Throws the group's failure at once when it has one, and what a device cannot do.
  template <typename Body>
  Work launch(Call call, std::int64_t logical_bytes, Body body) {
    if (announcing_) announce(call);
    return launch_unannounced(std::move(call), logical_bytes, std::move(body));
  }

  // The host thread's: see ProcessGroup::announce_collectives().
  void set_announcing(bool on) { announcing_ = on; }
  bool announcing() const { return announcing_; }

  template <typename Body>
  Work launch_unannounced(Call call, std::int64_t logical_bytes, Body body) {
    if (const std::exception_ptr failed = transport_->failure(call.operation)) {
      record_failure(failed);
      std::rethrow_exception(failed);
    }
    auto state = std::make_shared<WorkState>();
    state->operation = call.operation;
    state->device = device();
    state->times.enqueued = Clock::now();
    state->patience = std::max(kStreamTimeout, call.timeout + std::chrono::minutes(1));
    state->ticket = record_->enqueue(call, state->times.enqueued);
    call.check_signature = record_->check_signatures();
    if (DeviceQueue* device_queue = transport_->device_queue()) {
      return enqueue(*device_queue, std::move(state), std::move(call), logical_bytes,
                     std::move(body));
    }
    const Stream& compute = Context::current().stream(state->device);
    // A group of one has nobody to wait for: no queue, no thread.
    const Stream& queue = transport_->size() == 1 ? compute : runtime_->collective_stream();
    call.stream = queue;
    const Event inputs = transport_->size() == 1 ? Event() : compute.record();
    wait_quietly(queue, inputs);
    queue.launch([self = shared_from_this(), state, inputs, logical_bytes, call = std::move(call),
                  body = std::move(body)]() mutable {
      self->execute(*state, inputs, call, logical_bytes,
                    [&] { return body(*self->transport_, std::as_const(call)); });
    });
    Event done = queue.record();
    remember(done);
    return Work(std::move(state), std::move(done));
  }

  // Blocks until all that was enqueued has run, and leaves; what fails meanwhile is in its Work.
  void drain_and_leave() noexcept;

  void rank_failed(const std::string& reason) noexcept override {
    transport_->abort(reason);
    record_->rank_failed(reason);
  }

  GroupStats stats() const;
  void reset_stats();

 private:
  void announce(const Call& call);  // shadow.cpp
  static void wait_quietly(const Stream& queue, const Event& inputs);

  // launch() for a device: `body` enqueues in this thread, and the device's streams do the waiting.
  template <typename Body>
  Work enqueue(DeviceQueue& device_queue, std::shared_ptr<WorkState> state, Call call,
               std::int64_t logical_bytes, Body body) {
    call.stream = runtime_->collective_stream(state->device);
    call.stream.wait(Context::current().stream(state->device).record());
    state->begun = call.stream.record();
    Event done;
    try {
      const std::int64_t moved = body(*transport_, std::as_const(call));
      done = device_queue.finish(call, state,
                                 std::make_shared<OnDevice<Body>>(record_, state, std::move(body)));
      count(call.operation, logical_bytes, moved, {});
    } catch (const NotSupported& error) {
      record_->failed(state->ticket, Clock::now(), error.what());
      throw;
    } catch (...) {
      state->error = std::current_exception();
      end_with(state->error, call.operation);
      record_end(*state, call.operation);
    }
    remember(done);
    return Work(std::move(state), std::move(done));
  }

  // What a collective on a device holds until it has ended there.
  template <typename Body>
  struct OnDevice {
    OnDevice(std::shared_ptr<GroupRecord> group, std::shared_ptr<WorkState> work, Body&& held)
        : record(std::move(group)), state(std::move(work)), body(std::move(held)) {}
    // By the transport's watching thread, which must not be made to wait for a file.
    ~OnDevice() {
      const Clock::time_point now = Clock::now();
      if (state->error) {
        record->failed(state->ticket, now, message_of(state->error));
      } else {
        record->finished(state->ticket, now);
      }
    }
    std::shared_ptr<GroupRecord> record;
    std::shared_ptr<WorkState> state;
    Body body;
  };

  // Not what ranks agree on once, or keep a pool for.
  static bool moves_data(Operation operation) {
    return operation != Operation::allocate && operation != Operation::split;
  }

  template <typename Run>
  void execute(WorkState& state, const Event& inputs, const Call& call, std::int64_t logical_bytes,
               Run run) {
    state.times.started = Clock::now();
    record_->started(state.ticket, state.times.started);
    std::int64_t moved = 0;
    try {
      // It is over; this rethrows the error of the work that was to produce the inputs.
      inputs.synchronize(Deadline::after(kStreamTimeout));
      if (moves_data(call.operation)) link_delay_->sleep();
      moved = run();
    } catch (...) {
      state.error = std::current_exception();
      end_with(state.error, call.operation);
    }
    state.times.finished = Clock::now();
    record_end(state, call.operation);
    count(call.operation, logical_bytes, moved, state.times);
  }

  // Tells the peers of an error that is this rank's own; all but a refused allocation end the
  // group.
  void end_with(const std::exception_ptr& error, Operation operation) noexcept;
  // The flight recorder's part of the end of a collective. The peers know of an error by then, and
  // whoever waits for the collective does not yet: the record is on disk before the rank can end.
  void record_end(const WorkState& state, Operation operation) noexcept;
  void record_failure(const std::exception_ptr& error) noexcept;
  static std::string message_of(const std::exception_ptr& error);
  void count(Operation operation, std::int64_t logical, std::int64_t moved, const WorkTimes& times);
  void remember(const Event& done);

  const std::unique_ptr<Transport> transport_;
  const std::shared_ptr<Runtime> runtime_;
  const std::string name_;
  const Milliseconds timeout_;
  const std::shared_ptr<LinkDelay> link_delay_;
  const std::shared_ptr<GroupRecord> record_;
  bool announcing_ = false;   // the host thread's
  mutable std::mutex mutex_;  // guards what follows
  GroupStats stats_;
  Event last_;
};

}  // namespace cohort::comm
