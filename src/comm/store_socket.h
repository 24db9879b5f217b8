#pragma once

#include <cstdint>
#include <string>

#include "cohort/core/deadline.h"

// The few socket calls that client and server share. All sockets are closed on exec and do not
// block.
namespace cohort::comm {

// Owns a file descriptor.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept;
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  int release() {
    const int fd = fd_;
    fd_ = -1;
    return fd;
  }
  void reset();

 private:
  int fd_ = -1;
};

struct Listener {
  UniqueFd fd;
  std::uint16_t port;  // the real one where 0 was asked for
  bool ipv6;
};

// Listens on the one address that `host` resolves to. Throws StoreError; for a taken port it says
// what to do.
Listener listen_on(const std::string& host, std::uint16_t port);

// One attempt to connect. An empty result means that nobody answered (yet): `why` tells more.
// Throws StoreError when the name does not resolve.
UniqueFd connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                    std::string& why);

// Small messages at once; a vanished host is noticed within about 30 s.
void tune_socket(int fd);

// Waits until `fd` has one of the poll(2) events; false when the deadline passed first.
bool poll_for(int fd, short events, Deadline deadline);

}  // namespace cohort::comm
