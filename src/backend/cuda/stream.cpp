#include "backend/cuda/stream.h"

#include <utility>

#include "backend/cuda/check.h"
#include "backend/cuda/poll.h"
#include "cohort/core/error.h"

namespace cohort::backend::cuda {
namespace {

// CUDA notes "not ready" as the thread's last error; the note must not outlive the question.
cudaError_t asked(cudaError_t answer) {
  if (answer != cudaSuccess) cudaGetLastError();
  return answer;
}

}  // namespace

HostClock::~HostClock() {
  if (now_ != nullptr) log_cuda(cudaEventDestroy(now_), "cudaEventDestroy");
  if (idle_ != nullptr) log_cuda(cudaStreamDestroy(idle_), "cudaStreamDestroy");
}

Clock::time_point HostClock::time_of(cudaEvent_t event) {
  // An idle stream takes microseconds; one that does not answer in a second is an error to report.
  constexpr Milliseconds kAnswer{1'000};
  const std::lock_guard lock(mutex_);
  const DeviceGuard guard(device_);
  if (idle_ == nullptr) {
    check_cuda(cudaStreamCreateWithFlags(&idle_, cudaStreamNonBlocking), "cudaStreamCreate");
  }
  if (now_ == nullptr) check_cuda(cudaEventCreate(&now_), "cudaEventCreate");
  check_cuda(cudaEventRecord(now_, idle_), "cudaEventRecord");
  cudaError_t state = cudaErrorNotReady;
  const bool answered = poll_until(Deadline::after(kAnswer), [&] {
    state = asked(cudaEventQuery(now_));
    return state != cudaErrorNotReady;
  });
  const Clock::time_point now = Clock::now();
  check<TimeoutError>(answered, "[event] device cuda:", device_, " did not answer within ",
                      kAnswer.count(), " ms");
  check_cuda(state, "cudaEventQuery");
  float milliseconds = 0;
  check_cuda(cudaEventElapsedTime(&milliseconds, event, now_), "cudaEventElapsedTime");
  return now - std::chrono::duration_cast<Clock::duration>(
                   std::chrono::duration<double, std::milli>(milliseconds));
}

CudaStream::CudaStream(int index, std::string name)
    : StreamImpl(Device::cuda(index), std::move(name), /*runs_inline=*/true),
      clock_(std::make_shared<HostClock>(index)) {
  const DeviceGuard guard(index);
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
}

CudaStream::~CudaStream() {
  // Returns at once; CUDA frees the stream when what it holds has run.
  log_cuda(cudaStreamDestroy(stream_), "cudaStreamDestroy");
}

Event CudaStream::record() {
  return Event(make_intrusive<CudaEvent>(StreamHandle{stream_, device().index}, name(), clock_));
}

void CudaStream::wait(const Event& event) {
  if (event.impl() == nullptr) return;
  if (void* native = event.impl()->native()) {
    const DeviceGuard guard(device().index);
    check_cuda(cudaStreamWaitEvent(stream_, static_cast<cudaEvent_t>(native), 0),
               "cudaStreamWaitEvent");
  } else {
    event.synchronize(Deadline::after(kStreamTimeout));
  }
}

void CudaStream::synchronize(Deadline deadline) {
  cudaError_t state = cudaErrorNotReady;
  const bool over = poll_until(deadline, [&] {
    state = asked(cudaStreamQuery(stream_));
    return state != cudaErrorNotReady;
  });
  check<TimeoutError>(over, "[stream] work on stream '", name(), "' of ", device(),
                      " did not finish before the deadline");
  check_cuda(state, "cudaStreamQuery");
}

CudaEvent::CudaEvent(StreamHandle stream, std::string stream_name, std::shared_ptr<HostClock> clock)
    : stream_name_(std::move(stream_name)), clock_(std::move(clock)) {
  const DeviceGuard guard(stream.device);
  check_cuda(cudaEventCreate(&event_), "cudaEventCreate");
  try {
    check_cuda(cudaEventRecord(event_, stream.stream), "cudaEventRecord");
  } catch (...) {
    log_cuda(cudaEventDestroy(event_), "cudaEventDestroy");
    throw;
  }
}

CudaEvent::~CudaEvent() {
  log_cuda(cudaEventDestroy(event_), "cudaEventDestroy");
}

bool CudaEvent::ready() const {
  return asked(cudaEventQuery(event_)) != cudaErrorNotReady;
}

void CudaEvent::synchronize(Deadline deadline) {
  cudaError_t state = cudaErrorNotReady;
  const bool over = poll_until(deadline, [&] {
    state = asked(cudaEventQuery(event_));
    return state != cudaErrorNotReady;
  });
  check<TimeoutError>(over, "[event] work on stream '", stream_name_,
                      "' did not finish before the deadline");
  check_cuda(state, "cudaEventQuery");
}

Clock::time_point CudaEvent::completed_at() const {
  std::call_once(asked_, [&] { completed_at_ = clock_->time_of(event_); });
  return completed_at_;
}

}  // namespace cohort::backend::cuda
