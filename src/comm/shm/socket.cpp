#include "comm/shm/socket.h"

#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include "cohort/core/error.h"

namespace cohort::comm::shm {
namespace {

void fill_random(void* data, std::size_t bytes) {
  check<Error>(getrandom(data, bytes, 0) == static_cast<ssize_t>(bytes),
               "[shared memory] the system gives no random numbers");
}

// The abstract name: a zero byte, then the text, without a terminator.
socklen_t set_name(sockaddr_un& address, const std::string& name) {
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(),
              std::min(name.size(), sizeof(address.sun_path) - 1));
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

ucred credentials(const Descriptor& socket) {
  ucred peer{};
  socklen_t length = sizeof(peer);
  peer.uid = static_cast<uid_t>(-1);
  getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &length);
  return peer;
}

// True when `events` came; false when `slice` passed.
bool wait_for(int file, short events, Milliseconds slice) {
  pollfd entry{.fd = file, .events = events, .revents = 0};
  return poll(&entry, 1, static_cast<int>(slice.count())) > 0;
}

}  // namespace

Nonce random_nonce() {
  Nonce nonce;
  fill_random(nonce.data(), nonce.size());
  return nonce;
}

std::uint64_t random_word() {
  std::uint64_t word = 0;
  while (word == 0) fill_random(&word, sizeof(word));
  return word;
}

std::string to_hex(const Nonce& nonce) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const std::uint8_t byte : nonce) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

std::optional<Nonce> nonce_from_hex(const std::string& text) {
  Nonce nonce{};
  if (text.size() != 2 * nonce.size()) return std::nullopt;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    int digit = 0;
    if (c >= '0' && c <= '9') {
      digit = c - '0';
    } else if (c >= 'a' && c <= 'f') {
      digit = c - 'a' + 10;
    } else {
      return std::nullopt;
    }
    nonce[i / 2] = static_cast<std::uint8_t>(nonce[i / 2] << 4 | digit);
  }
  return nonce;
}

Descriptor listen_abstract(std::string& name) {
  Descriptor listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  name = "cohort-" + to_hex(random_nonce());
  sockaddr_un address;
  const socklen_t length = set_name(address, name);
  check<Error>(listener &&
                   bind(listener.get(), reinterpret_cast<sockaddr*>(&address), length) == 0 &&
                   listen(listener.get(), SOMAXCONN) == 0,
               "[shared memory] no local socket: ", std::generic_category().message(errno));
  return listener;
}

std::optional<Descriptor> connect_abstract(const std::string& name) {
  Descriptor socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  check<Error>(static_cast<bool>(socket),
               "[shared memory] no local socket: ", std::generic_category().message(errno));
  sockaddr_un address;
  if (name.size() + 1 > sizeof(address.sun_path)) return std::nullopt;
  const socklen_t length = set_name(address, name);
  if (connect(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0) {
    return std::nullopt;
  }
  return socket;
}

bool same_user(const Descriptor& socket) {
  return credentials(socket).uid == geteuid();
}

std::optional<Descriptor> accept_same_user(const Descriptor& listener, Milliseconds slice) {
  if (!wait_for(listener.get(), POLLIN, slice)) return std::nullopt;
  Descriptor socket(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket || !same_user(socket)) return std::nullopt;
  return socket;
}

Descriptor watch_process(const Descriptor& socket) {
  const pid_t pid = credentials(socket).pid;
  if (pid <= 0 || pid == getpid()) return {};
  return Descriptor(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
}

bool send_bytes(const Descriptor& socket, const void* data, std::size_t bytes, int file) {
  iovec part{.iov_base = const_cast<void*>(data), .iov_len = bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  if (file >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    std::memcpy(CMSG_DATA(header), &file, sizeof(int));
  }
  // The buffers hold hundreds of such messages: a peer that takes none for seconds does not listen.
  const Deadline deadline = Deadline::after(std::chrono::seconds(2));
  while (!deadline.passed()) {
    if (sendmsg(socket.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT) >= 0) return true;
    if (errno != EAGAIN && errno != EINTR) return false;
    wait_for(socket.get(), POLLOUT, Milliseconds(20));
  }
  return false;
}

bool receive_bytes(const Descriptor& socket, void* data, std::size_t bytes, Descriptor& file,
                   Milliseconds slice) {
  if (!wait_for(socket.get(), POLLIN, slice)) return false;
  iovec part{.iov_base = data, .iov_len = bytes};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const ssize_t received =
      recvmsg(socket.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT | MSG_TRUNC);
  if (received < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (const cmsghdr* header = CMSG_FIRSTHDR(&message);
      received >= 0 && header && header->cmsg_type == SCM_RIGHTS) {
    int number = -1;
    std::memcpy(&number, CMSG_DATA(header), sizeof(int));
    file.reset(number);
  }
  check<Error>(received == static_cast<ssize_t>(bytes),
               received <= 0 ? "[shared memory] the connection to a peer was closed"
                             : "[shared memory] a peer sent a message of another size");
  return true;
}

bool hung_up(const Descriptor& socket, const Descriptor& process) {
  pollfd entries[2] = {{.fd = socket.get(), .events = POLLRDHUP, .revents = 0},
                       {.fd = process.get(), .events = POLLIN, .revents = 0}};
  if (poll(entries, 2, 0) <= 0) return false;
  return (entries[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 ||
         (entries[1].revents & POLLIN) != 0;
}

}  // namespace cohort::comm::shm
