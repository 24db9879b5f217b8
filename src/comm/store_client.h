#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>

#include "comm/store_handshake.h"
#include "comm/store_protocol.h"
#include "comm/store_socket.h"

namespace cohort::comm {

// One authenticated connection to a server, shared by any number of calling threads. There is no
// thread of its own: of the callers that wait for a reply, one at a time reads the socket for all.
class StoreConnection {
 public:
  // Connects and shakes hands, trying again until the deadline while nobody listens.
  StoreConnection(std::string host, std::uint16_t port, const StoreCredentials& credentials,
                  Deadline deadline);
  ~StoreConnection() = default;

  // Sends one request and waits for its reply, whose payload it returns. `what` names the operation
  // and `key` its object in errors.
  std::string call(StoreOp op, FrameWriter request, std::uint64_t call, Deadline deadline,
                   const char* what, std::string_view key);
  std::uint64_t next_call();

 private:
  struct Pending {
    bool done = false;
    StoreStatus status = StoreStatus::ok;
    std::string payload;
  };

  // False when the attempt failed in a way that a later one may not; `why` says how.
  bool attempt(const StoreCredentials& credentials, Deadline deadline, std::string& why);
  bool receive_exactly(int fd, std::string& bytes, std::size_t size, Deadline deadline);
  void send(std::string frame, Deadline deadline, const char* what);
  bool start_writing(Deadline deadline);
  void stop_writing();
  bool flush(Deadline deadline);
  void cancel(std::uint64_t call);
  void await(Pending& pending, Deadline deadline);
  void read_some(std::unique_lock<std::mutex>& lock);
  void dispatch(std::string_view frame);
  void fail(const std::string& why);
  [[noreturn]] void throw_failed(const char* what);
  std::string address() const;

  const std::string host_;
  const std::uint16_t port_;
  UniqueFd fd_;

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  std::unordered_map<std::uint64_t, Pending*> pending_;
  std::uint64_t last_call_ = 0;
  bool writing_ = false;  // some caller writes to the socket; it alone touches unsent_
  bool reading_ = false;  // some caller reads the socket; it alone touches input_
  std::string failure_;   // not empty: the connection is dead, and why
  std::string unsent_;    // rest of a frame whose call ran out of time
  FrameBuffer input_;
};

}  // namespace cohort::comm
