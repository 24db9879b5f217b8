#include "comm/store_socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <system_error>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

std::string error_text(int error) {
  return std::generic_category().message(error);
}

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses resolve(const std::string& host, std::uint16_t port, int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (error != 0) {
    throw StoreError(str("[store] the host name '", host, "' cannot be resolved: ",
                         gai_strerror(error), "; give MASTER_ADDR as an address or a known name"));
  }
  return {found, &freeaddrinfo};
}

std::uint16_t bound_port(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

std::string listen_hint(int error) {
  switch (error) {
    case EADDRINUSE:
      return "; another process listens there (perhaps another job): choose another port "
             "(--master-port, MASTER_PORT), or 0 with `cohort run` to let the system pick one";
    case EADDRNOTAVAIL:
      return "; this machine has no such address: name the address of one of its interfaces "
             "(--bind-addr, COHORT_BIND_ADDR)";
    case EACCES:
      return "; ports below 1024 need privileges: choose another one";
    default:
      return "";
  }
}

}  // namespace

UniqueFd& UniqueFd::operator=(UniqueFd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

void UniqueFd::reset() {
  if (fd_ >= 0) ::close(release());
}

Listener listen_on(const std::string& host, std::uint16_t port) {
  const Addresses addresses = resolve(host, port, AI_PASSIVE);
  const addrinfo& address = *addresses;
  UniqueFd fd(::socket(address.ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  // Lets a job start again on the port of one that just ended; a live listener still excludes it.
  if (fd) setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (!fd || ::bind(fd.get(), address.ai_addr, address.ai_addrlen) != 0 ||
      ::listen(fd.get(), SOMAXCONN) != 0) {
    const int error = errno;
    throw StoreError(str("[store] cannot listen on ", host, " port ", port, ": ", error_text(error),
                         listen_hint(error)));
  }
  const std::uint16_t real_port = bound_port(fd.get());
  return {std::move(fd), real_port, address.ai_family == AF_INET6};
}

UniqueFd connect_to(const std::string& host, std::uint16_t port, Deadline deadline,
                    std::string& why) {
  const Addresses addresses = resolve(host, port, 0);
  for (const addrinfo* address = addresses.get(); address; address = address->ai_next) {
    UniqueFd fd(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!fd) {
      why = error_text(errno);
      continue;
    }
    int error = 0;
    if (::connect(fd.get(), address->ai_addr, address->ai_addrlen) != 0) error = errno;
    if (error == EINPROGRESS) {
      if (!poll_for(fd.get(), POLLOUT, deadline)) {
        why = "no answer";
        return {};
      }
      socklen_t size = sizeof error;
      getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    }
    if (error == 0) {
      tune_socket(fd.get());
      return fd;
    }
    why = error_text(error);
  }
  return {};
}

void tune_socket(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  // 15 s of silence, then 3 probes 5 s apart.
  const int idle = 15;
  const int interval = 5;
  const int probes = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval, sizeof interval);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

bool poll_for(int fd, short events, Deadline deadline) {
  while (true) {
    pollfd entry{fd, events, 0};
    // A day at most per call: poll counts in int milliseconds.
    const auto left = std::min<std::int64_t>(deadline.left().count(), 86'400'000);
    const int ready = ::poll(&entry, 1, static_cast<int>(left));
    // Any other failure of poll shows in the read or write that follows.
    if (ready > 0 || (ready < 0 && errno != EINTR)) return true;
    if (deadline.passed()) return false;
  }
}

}  // namespace cohort::comm
