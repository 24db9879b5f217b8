#pragma once

#include <exception>

#include "cohort/core/deadline.h"
#include "cohort/core/intrusive_ptr.h"

namespace cohort {

// What an event does on its kind of stream. Thread-safe.
class EventImpl : public RefCounted {
 public:
  virtual ~EventImpl() = default;
  // True once everything before the mark has run. Never blocks.
  virtual bool ready() const = 0;
  // Blocks the calling thread until ready. Rethrows the error of work before the mark; TimeoutError
  // when the deadline passes first.
  virtual void synchronize(Deadline deadline) = 0;
  // When the mark was passed, by the host's clock. Only after ready().
  virtual Clock::time_point completed_at() const = 0;
  // The device's own event (a cudaEvent_t), which its streams can wait for, or null.
  virtual void* native() const { return nullptr; }
};

// A mark in a stream: "everything enqueued before here". A cheap handle; a default-constructed one
// marks nothing and is always ready. Copies refer to the same mark. Thread-safe.
class Event {
 public:
  Event() = default;
  explicit Event(IntrusivePtr<EventImpl> impl) : impl_(std::move(impl)) {}

  bool ready() const { return !impl_ || impl_->ready(); }
  void synchronize(Deadline deadline) const {
    if (impl_) impl_->synchronize(deadline);
  }
  // When the mark was passed; the epoch for an event that marks nothing.
  Clock::time_point completed_at() const {
    return impl_ ? impl_->completed_at() : Clock::time_point{};
  }
  EventImpl* impl() const { return impl_.get(); }

 private:
  IntrusivePtr<EventImpl> impl_;
};

}  // namespace cohort
