#pragma once

#include <nccl.h>

#include <mutex>
#include <string>
#include <string_view>

#include "backend/cuda/poll.h"
#include "cohort/core/deadline.h"
#include "cohort/core/error.h"

namespace cohort::comm::nccl {

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 14, 0), "non-blocking communicators");

// A non-blocking NCCL communicator: calls return at once, and NCCL is asked with a deadline whether
// it is done with them. Thread-safe: abort() may come while another thread is in run().
class Communicator {
 public:
  // Joins `size` ranks. TimeoutError when not all came; CommError, in NCCL's words, for the rest.
  Communicator(const ncclUniqueId& id, int device, int rank, int size, std::string group,
               Deadline deadline);
  // Aborts, unless closed.
  ~Communicator();
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  // call(communicator), which enqueues, and waits until NCCL has enqueued it. `what` is for
  // messages.
  template <typename F>
  void run(std::string_view what, Deadline deadline, F call) {
    {
      const std::lock_guard lock(mutex_);
      start(what, [&] { return call(comm_); });
    }
    settle(what, deadline);
  }

  // What NCCL itself reports of the communicator (a lost connection, say), or empty.
  std::string trouble();
  // Ends what runs on the device, on this rank. Later calls throw.
  void abort() noexcept;
  // Leaves in good order; what was enqueued has run. Aborts when that takes too long.
  void close(Deadline deadline) noexcept;

 private:
  // Under the mutex.
  template <typename F>
  void start(std::string_view what, F call) {
    check<CommError>(comm_ != nullptr, "[", what, "] the group has ended", where());
    const ncclResult_t result = call();
    if (result != ncclSuccess && result != ncclInProgress) fail(what, result);
  }
  void settle(std::string_view what, Deadline deadline);
  [[noreturn]] void fail(std::string_view what, ncclResult_t result) const;
  std::string where() const;

  const int device_;
  const int rank_;
  const int size_;
  const std::string group_;
  std::mutex mutex_;  // guards what follows
  ncclComm_t comm_ = nullptr;
};

// A fresh name for a communicator, made by one rank and told to the others.
ncclUniqueId make_unique_id();

}  // namespace cohort::comm::nccl
