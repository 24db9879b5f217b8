#pragma once

#include <cuda_runtime_api.h>

#include <memory>
#include <mutex>
#include <string>

#include "cohort/core/event.h"
#include "cohort/core/stream.h"

namespace cohort::backend::cuda {

// What a kernel needs of a stream. Taken before a launch, so that the closure does not own the
// stream that may own the closure.
struct StreamHandle {
  cudaStream_t stream = nullptr;
  int device = 0;
};
inline StreamHandle handle_of(const Stream& stream) {
  return {static_cast<cudaStream_t>(stream.native()), stream.device().index};
}

// Tells when a mark was passed, by the host's clock. The device only knows the time between two
// marks; so a second mark is made on an idle stream, waited for, and read together with the host's
// clock. The result is late by the time in which such a mark is seen: microseconds, more where the
// device's queues are full. One per stream; thread-safe.
class HostClock {
 public:
  explicit HostClock(int device) : device_(device) {}
  ~HostClock();
  HostClock(const HostClock&) = delete;
  HostClock& operator=(const HostClock&) = delete;

  // Of an event that is ready.
  Clock::time_point time_of(cudaEvent_t event);

 private:
  const int device_;
  std::mutex mutex_;  // guards what follows
  cudaStream_t idle_ = nullptr;
  cudaEvent_t now_ = nullptr;
};

// A stream of device `index`; it never waits for CUDA's default stream.
class CudaStream final : public StreamImpl {
 public:
  CudaStream(int index, std::string name);
  ~CudaStream() override;

  // launch() on an inline stream calls its closure itself; a closure enqueues on native().
  void enqueue(Task task) override { task(); }
  Event record() override;
  void wait(const Event& event) override;
  void synchronize(Deadline deadline) override;
  void* native() const override { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
  std::shared_ptr<HostClock> clock_;
};

// A mark in a CUDA stream.
class CudaEvent final : public EventImpl {
 public:
  CudaEvent(StreamHandle stream, std::string stream_name, std::shared_ptr<HostClock> clock);
  ~CudaEvent() override;

  // Also true when the device is lost: nothing runs there any more. synchronize() tells.
  bool ready() const override;
  void synchronize(Deadline deadline) override;
  Clock::time_point completed_at() const override;
  void* native() const override { return event_; }

 private:
  cudaEvent_t event_ = nullptr;
  const std::string stream_name_;
  const std::shared_ptr<HostClock> clock_;
  mutable std::once_flag asked_;
  mutable Clock::time_point completed_at_{};
};

}  // namespace cohort::backend::cuda
