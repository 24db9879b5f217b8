#include "comm/nccl/communicator.h"

#include <utility>

#include "backend/cuda/check.h"
#include "cohort/core/logging.h"

namespace cohort::comm::nccl {
namespace {

void log_nccl(ncclResult_t result, const char* call) noexcept {
  if (result == ncclSuccess || result == ncclInProgress) return;
  try {
    logging::warn(str("[nccl] ", call, ": ", ncclGetErrorString(result)));
  } catch (...) {
    return;  // no memory to say it
  }
}

}  // namespace

ncclUniqueId make_unique_id() {
  ncclUniqueId id;
  const ncclResult_t result = ncclGetUniqueId(&id);
  check<CommError>(result == ncclSuccess, "[init] ncclGetUniqueId: ", ncclGetErrorString(result),
                   "; NCCL_DEBUG=INFO tells more");
  return id;
}

Communicator::Communicator(const ncclUniqueId& id, int device, int rank, int size,
                           std::string group, Deadline deadline)
    : device_(device), rank_(rank), size_(size), group_(std::move(group)) {
  const backend::cuda::DeviceGuard guard(device_);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  try {
    const ncclResult_t result = ncclCommInitRankConfig(&comm_, size_, id, rank_, &config);
    if (result != ncclSuccess && result != ncclInProgress) fail("init", result);
    settle("init", deadline);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  abort();
}

void Communicator::settle(std::string_view what, Deadline deadline) {
  ncclResult_t state = ncclInProgress;
  // One look at a time, so that abort() gets its turn in between.
  const bool over = backend::cuda::poll_until(deadline, [&] {
    const std::lock_guard lock(mutex_);
    check<CommError>(comm_ != nullptr, "[", what, "] the group has ended", where());
    const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
    if (asked != ncclSuccess) state = asked;
    return state != ncclInProgress;
  });
  check<TimeoutError>(over, "[", what, "] NCCL did not start it before the deadline", where(),
                      "; is every rank there, and does each have a GPU of its own?");
  if (state != ncclSuccess) {
    const std::lock_guard lock(mutex_);
    fail(what, state);
  }
}

std::string Communicator::trouble() {
  const std::lock_guard lock(mutex_);
  if (comm_ == nullptr) return {};
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = ncclCommGetAsyncError(comm_, &state);
  if (asked != ncclSuccess) state = asked;
  if (state == ncclSuccess || state == ncclInProgress) return {};
  return str("NCCL reports: ", ncclGetErrorString(state), ", ", ncclGetLastError(comm_));
}

void Communicator::abort() noexcept {
  const std::lock_guard lock(mutex_);
  if (comm_ != nullptr) log_nccl(ncclCommAbort(std::exchange(comm_, nullptr)), "ncclCommAbort");
}

void Communicator::close(Deadline deadline) noexcept {
  try {
    run("leave", deadline, [](ncclComm_t comm) { return ncclCommFinalize(comm); });
    const std::lock_guard lock(mutex_);
    if (comm_ != nullptr) {
      log_nccl(ncclCommDestroy(std::exchange(comm_, nullptr)), "ncclCommDestroy");
    }
  } catch (const std::exception& error) {
    logging::warn(error.what());
    abort();
  }
}

void Communicator::fail(std::string_view what, ncclResult_t result) const {
  throw CommError(str("[", what, "] NCCL: ", ncclGetErrorString(result), ", ",
                      comm_ != nullptr ? ncclGetLastError(comm_) : "no communicator", where(),
                      "; NCCL_DEBUG=INFO tells more"));
}

std::string Communicator::where() const {
  return str(" (rank ", rank_, " of ", size_, ", group '", group_, "', cuda:", device_, ")");
}

}  // namespace cohort::comm::nccl
