#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "cohort/core/device.h"
#include "cohort/core/event.h"
#include "cohort/core/intrusive_ptr.h"
#include "cohort/core/task.h"

namespace cohort {

// How long host code waits for a stream when nobody gave a deadline. Collectives have their own,
// shorter ones; this one only keeps a lost wake-up from becoming a silent hang.
inline constexpr Milliseconds kStreamTimeout = std::chrono::minutes(30);

// One kind of stream. Its methods may be called from any thread; work runs in enqueue order.
class StreamImpl : public RefCounted {
 public:
  StreamImpl(Device device, std::string name, bool runs_inline);
  virtual ~StreamImpl() = default;

  virtual void enqueue(Task task) = 0;
  virtual Event record() = 0;
  virtual void wait(const Event& event) = 0;
  virtual void synchronize(Deadline deadline) = 0;
  // The device's own stream (a cudaStream_t), or null.
  virtual void* native() const { return nullptr; }

  Device device() const { return device_; }
  const std::string& name() const { return name_; }
  // Unique in the process; the allocator keys its free blocks by it.
  std::uint64_t id() const { return id_; }
  bool runs_inline() const { return runs_inline_; }

 private:
  Device device_;
  std::string name_;
  std::uint64_t id_;
  bool runs_inline_;
};

// An ordered queue of work on one device; a cheap handle, copies are the same stream.
//
// On the CPU the compute stream is inline: launch() runs the work in the calling thread before it
// returns. Other CPU streams are worker threads, or the seeded scheduler's (core/scheduler.h). On
// CUDA launch() runs the closure at once, and the closure enqueues kernels on native().
//
// When queued work throws, the stream drops what follows, and events recorded after it carry the
// error, until synchronize() on the stream rethrows it and clears it.
class Stream {
 public:
  Stream() = default;
  explicit Stream(IntrusivePtr<StreamImpl> impl) : impl_(std::move(impl)) {}

  // Runs `fn` after everything enqueued before. `fn` must own (or have reserved until an event)
  // all that it touches; the stream's context travels with it.
  template <typename F>
  void launch(F&& fn) const {
    if (impl_->runs_inline()) {
      fn();
    } else {
      impl_->enqueue(Task(std::forward<F>(fn)));
    }
  }

  // Marks the current end of the stream.
  Event record() const { return impl_->record(); }
  // Work enqueued from now on runs after `event`. On the CPU's inline stream, and on a CUDA stream
  // for an event of the CPU, this blocks the caller, with kStreamTimeout, and rethrows the event's
  // error.
  void wait(const Event& event) const { impl_->wait(event); }
  // Blocks until all enqueued work has run; rethrows and clears the stream's error.
  void synchronize(Deadline deadline = Deadline::after(kStreamTimeout)) const {
    impl_->synchronize(deadline);
  }

  Device device() const { return impl_->device(); }
  std::uint64_t id() const { return impl_->id(); }
  bool runs_inline() const { return impl_->runs_inline(); }
  void* native() const { return impl_->native(); }
  const std::string& name() const { return impl_->name(); }
  StreamImpl* impl() const { return impl_.get(); }
  explicit operator bool() const { return static_cast<bool>(impl_); }
  friend bool operator==(const Stream& a, const Stream& b) { return a.impl_ == b.impl_; }

 private:
  IntrusivePtr<StreamImpl> impl_;
};

// A CPU stream whose work runs in the calling thread at once.
Stream make_inline_stream(std::string name);

struct WorkerStreamOptions {
  // Non-zero: the worker sleeps a pseudo-random 0 to 200 microseconds before each task, to shake
  // orders that depend on luck. For tests.
  std::uint64_t delay_seed = 0;
};

// A CPU stream with a thread of its own. The thread ends when the last handle goes, after it has
// run what was enqueued.
Stream make_worker_stream(std::string name, WorkerStreamOptions options = {});

}  // namespace cohort
