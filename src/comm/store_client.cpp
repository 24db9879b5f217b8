#include "comm/store_client.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

// Between two attempts to reach a server that is not up yet.
constexpr Milliseconds kFirstRetry{5};
constexpr Milliseconds kLastRetry{200};

std::string error_text(int error) {
  return std::generic_category().message(error);
}

bool would_block(int error) {
  return error == EAGAIN || error == EWOULDBLOCK;
}

}  // namespace

StoreConnection::StoreConnection(std::string host, std::uint16_t port,
                                 const StoreCredentials& credentials, Deadline deadline)
    : host_(std::move(host)), port_(port) {
  std::string why;
  Milliseconds pause = kFirstRetry;
  while (!attempt(credentials, deadline, why)) {
    if (deadline.passed()) {
      throw TimeoutError(str("[store.connect] no store of this job answered at ", address(), " (",
                             why, "); is its host up, and MASTER_ADDR and MASTER_PORT right?"));
    }
    poll_for(-1, 0, Deadline::after(pause).sooner(deadline));
    pause = std::min(2 * pause, kLastRetry);
  }
}

bool StoreConnection::attempt(const StoreCredentials& credentials, Deadline deadline,
                              std::string& why) {
  UniqueFd fd = connect_to(host_, port_, deadline, why);
  if (!fd) return false;
  const ClientHandshake handshake(credentials);
  // A fresh socket's buffer takes these few bytes at once; where it does not, the connection is
  // dead.
  const auto put = [&](const std::string& bytes) {
    return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  };
  why = "the connection was closed during the handshake; perhaps another program listens there";
  std::string answer;
  if (!put(handshake.hello()) || !receive_exactly(fd.get(), answer, kAnswerSize, deadline)) {
    return false;
  }
  std::string proof;
  switch (handshake.judge(answer, proof)) {
    case ClientHandshake::Answer::proven:
      break;
    case ClientHandshake::Answer::not_a_store:
      throw StoreError(str("[store.connect] what listens at ", address(),
                           " is no store of this version; is another program using the port?"));
    case ClientHandshake::Answer::wrong_job:
      throw StoreError(str("[store.connect] the store at ", address(),
                           " belongs to another job than '", credentials.job_id,
                           "'; give each job a port of its own (MASTER_PORT)"));
    case ClientHandshake::Answer::wrong_secret:
      throw StoreError(str("[store.connect] the store at ", address(),
                           " does not know this job's secret; COHORT_JOB_SECRET must be the same "
                           "on all ranks"));
  }
  std::string verdict;
  if (!put(proof) || !receive_exactly(fd.get(), verdict, 1, deadline)) return false;
  if (verdict[0] != static_cast<char>(Verdict::accepted)) {
    throw StoreError(str("[store.connect] the store at ", address(), " refused this client: ",
                         verdict[0] == static_cast<char>(Verdict::full)
                             ? "it has as many connections as it takes"
                             : "the job's secret differs (COHORT_JOB_SECRET)"));
  }
  fd_ = std::move(fd);
  return true;
}

bool StoreConnection::receive_exactly(int fd, std::string& bytes, std::size_t size,
                                      Deadline deadline) {
  bytes.clear();
  std::array<char, 256> buffer;
  while (bytes.size() < size) {
    const auto got = ::recv(fd, buffer.data(), std::min(buffer.size(), size - bytes.size()), 0);
    if (got > 0) {
      bytes.append(buffer.data(), static_cast<std::size_t>(got));
      continue;
    }
    const bool closed = got == 0 || !(would_block(errno) || errno == EINTR);
    if (closed || !poll_for(fd, POLLIN, deadline)) return false;
  }
  return true;
}

std::string StoreConnection::address() const {
  return str(host_, ":", port_);
}

std::uint64_t StoreConnection::next_call() {
  const std::lock_guard lock(mutex_);
  return ++last_call_;
}

std::string StoreConnection::call(StoreOp op, FrameWriter request, std::uint64_t call,
                                  Deadline deadline, const char* what, std::string_view key) {
  Pending pending;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_.empty()) throw_failed(what);
    pending_.emplace(call, &pending);
  }
  // Whatever happens, the reader must not touch `pending` after this function.
  struct Unregister {
    StoreConnection* self;
    std::uint64_t call;
    ~Unregister() {
      const std::lock_guard lock(self->mutex_);
      self->pending_.erase(call);
    }
  } const unregister{this, call};

  send(std::move(request).str(), deadline, what);
  await(pending, deadline);

  std::unique_lock lock(mutex_);
  if (pending.done) {
    if (pending.status == StoreStatus::ok) return std::move(pending.payload);
    const std::string message = str("[", what, "] ", pending.payload);
    if (pending.status == StoreStatus::invalid_argument) throw InvalidArgument(message);
    throw StoreError(message);
  }
  if (!failure_.empty()) throw_failed(what);
  lock.unlock();
  if (op == StoreOp::get || op == StoreOp::wait) cancel(call);
  throw TimeoutError(str("[", what, "] '", key, "' at the store ", address(),
                         op == StoreOp::get || op == StoreOp::wait
                             ? " was not set before the deadline"
                             : " was not answered before the deadline"));
}

void StoreConnection::await(Pending& pending, Deadline deadline) {
  std::unique_lock lock(mutex_);
  while (!pending.done && failure_.empty() && !deadline.passed()) {
    if (reading_) {
      changed_.wait_until(lock, deadline.at());
    } else {
      reading_ = true;
      lock.unlock();
      const bool ready = poll_for(fd_.get(), POLLIN, deadline);
      lock.lock();
      if (ready) read_some(lock);
      reading_ = false;
      changed_.notify_all();  // someone else may have to read now
    }
  }
}

// Reads what has arrived and hands out the replies. The caller holds the reading role and `lock`.
void StoreConnection::read_some(std::unique_lock<std::mutex>& lock) {
  lock.unlock();
  std::array<char, 64 * 1024> buffer;
  const auto got = ::recv(fd_.get(), buffer.data(), buffer.size(), 0);
  const int error = errno;
  lock.lock();
  if (got > 0) {
    try {
      input_.append(buffer.data(), static_cast<std::size_t>(got));
      while (const auto frame = input_.next()) dispatch(*frame);
      input_.compact();
    } catch (const ProtocolError& nonsense) {
      fail(str("it sent nonsense: ", nonsense.what()));
    }
  } else if (got == 0) {
    fail("the connection was closed");
  } else if (!would_block(error) && error != EINTR) {
    fail(error_text(error));
  }
}

void StoreConnection::dispatch(std::string_view frame) {
  FrameReader reader(frame);
  const auto status = static_cast<StoreStatus>(reader.u8());
  const auto found = pending_.find(reader.u64());
  if (found == pending_.end()) return;  // the reply to a call that ran out of time
  Pending& pending = *found->second;
  pending.status = status;
  pending.payload = reader.raw();
  pending.done = true;
  changed_.notify_all();
}

void StoreConnection::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
  changed_.notify_all();
}

void StoreConnection::throw_failed(const char* what) {
  throw StoreError(str("[", what, "] the store at ", address(), " is gone (", failure_,
                       "); the process that hosts it has ended or dropped this client"));
}

void StoreConnection::send(std::string frame, Deadline deadline, const char* what) {
  const auto timed_out = [&] {
    return TimeoutError(str("[", what, "] the request could not be sent to the store ", address(),
                            " before the deadline"));
  };
  if (!start_writing(deadline)) throw timed_out();
  bool sent = flush(deadline);
  if (sent) {
    // From here on the frame belongs to the connection: if time runs out half-way, the next call
    // sends the rest first.
    unsent_ = std::move(frame);
    sent = flush(deadline);
  }
  stop_writing();
  if (!sent) throw timed_out();
}

bool StoreConnection::start_writing(Deadline deadline) {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.at(), [&] { return !writing_; })) return false;
  writing_ = true;
  return true;
}

void StoreConnection::stop_writing() {
  const std::lock_guard lock(mutex_);
  writing_ = false;
  changed_.notify_all();
}

bool StoreConnection::flush(Deadline deadline) {
  std::size_t sent = 0;
  bool in_time = true;
  while (sent < unsent_.size()) {
    const auto put = ::send(fd_.get(), unsent_.data() + sent, unsent_.size() - sent, MSG_NOSIGNAL);
    if (put > 0) {
      sent += static_cast<std::size_t>(put);
      continue;
    }
    if (!would_block(errno) && errno != EINTR) {
      const std::lock_guard lock(mutex_);
      fail(error_text(errno));
      sent = unsent_.size();
      break;  // the wait for the reply reports it
    }
    if (deadline.passed()) {
      in_time = false;
      break;
    }
    // While the server will not take more, it may be waiting for us to take its replies: read, if
    // nobody else does. The slices let this thread notice that the reader has left.
    std::unique_lock lock(mutex_);
    const bool may_read = !std::exchange(reading_, true);
    lock.unlock();
    const auto slice = Deadline::after(Milliseconds(50)).sooner(deadline);
    poll_for(fd_.get(), static_cast<short>(may_read ? POLLIN | POLLOUT : POLLOUT), slice);
    if (may_read) {
      lock.lock();
      read_some(lock);
      reading_ = false;
      changed_.notify_all();
    }
  }
  unsent_.erase(0, sent);
  return in_time;
}

// Tells the server that nobody waits for `call` any more. Best effort: an unheard cancel costs one
// parked call and one reply that nobody reads.
void StoreConnection::cancel(std::uint64_t call) {
  const Deadline now = Deadline::after(Milliseconds(0));
  if (!start_writing(now)) return;
  if (unsent_.empty()) {
    FrameWriter frame(static_cast<std::uint8_t>(StoreOp::cancel), 0);
    frame.u64(call);
    unsent_ = std::move(frame).str();
    flush(now);
  }
  stop_writing();
}

}  // namespace cohort::comm
