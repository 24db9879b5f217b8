#include "comm/gloo/control.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <system_error>
#include <utility>

#include "cohort/core/error.h"
#include "comm/failure.h"
#include "comm/shm/socket.h"

namespace cohort::comm::gloo {
namespace {

constexpr std::uint64_t kMagic = 0x636f686f72743037;  // "cohort07"
constexpr Milliseconds kSlice{20};
// Between looks at deadlines, and where one has just passed.
constexpr int kTickMs = 50;
constexpr int kSoonMs = 10;
// For telling the last words to peers that may be gone.
constexpr Milliseconds kFarewell{2'000};
constexpr std::uint32_t kMaxBody = 1 << 20;

// The first bytes on a connection, from the rank that connected. The nonce is the receiver's, as
// published in the store: who knows it belongs to the job.
struct Hello {
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
  shm::Nonce nonce;
};

struct Frame {
  std::uint64_t group;
  std::uint32_t bytes;
  Word::Kind kind;
};

std::string key(int rank) {
  return str("control/", rank);
}

struct Address {
  std::string host;
  std::uint16_t port = 0;
  shm::Nonce nonce{};
};

Address parse(const std::string& text, int rank) {
  Address address;
  std::istringstream in(text);
  std::string nonce;
  in >> address.host >> address.port >> nonce;
  const auto parsed = shm::nonce_from_hex(nonce);
  check<StoreError>(!in.fail() && parsed.has_value(), "[init] the store holds '", text,
                    "' where the address of rank ", rank, " should be");
  address.nonce = *parsed;
  return address;
}

// Reads exactly `bytes`; false when the connection ends or the deadline passes first.
bool read_all(int fd, void* data, std::size_t bytes, Deadline deadline) {
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::recv(fd, to, bytes, MSG_DONTWAIT);
    if (got > 0) {
      to += got;
      bytes -= static_cast<std::size_t>(got);
    } else if (got == 0 || (errno != EAGAIN && errno != EINTR)) {
      return false;
    } else if (!poll_for(fd, POLLIN, deadline)) {
      return false;
    }
  }
  return true;
}

}  // namespace

Control::Control(Store& store, int rank, int size, const std::string& address, Deadline deadline)
    : rank_(rank),
      size_(size),
      peers_(static_cast<std::size_t>(size)),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  check<Error>(static_cast<bool>(wake_), "[init] no event descriptor: ", std::strerror(errno));
  meet(store, address, deadline);
  thread_ = std::thread([this] { run(); });
}

Control::~Control() {
  for (int peer = 0; peer < size_; ++peer) say(peer, {.kind = Word::Kind::goodbye});
  stopping_.store(true);
  wake();
  thread_.join();
}

// Connects to the lower ranks, and accepts the higher ones.
void Control::meet(Store& store, const std::string& address, Deadline deadline) {
  const Listener listener = listen_on(address, 0);
  const shm::Nonce nonce = shm::random_nonce();
  store.set(key(rank_), str(address, ' ', listener.port, ' ', shm::to_hex(nonce)), deadline.left());
  std::vector<Address> found;
  for (int r = 0; r < size_; ++r) {
    try {
      found.push_back(parse(store.get(key(r), deadline.left()), r));
    } catch (const TimeoutError&) {
      throw TimeoutError(str("[init] rank ", r, " told no address in time (rank ", rank_, " of ",
                             size_, ", backend gloo)"));
    }
    addresses_.push_back(found.back().host);
  }
  for (int r = 0; r < rank_; ++r) {
    const Address& to = found[static_cast<std::size_t>(r)];
    std::string why;
    UniqueFd socket = connect_to(to.host, to.port, deadline, why);
    const Hello hello{kMagic, rank_, size_, to.nonce};
    const bool sent = socket && ::send(socket.get(), &hello, sizeof(hello), MSG_NOSIGNAL) ==
                                    static_cast<ssize_t>(sizeof(hello));
    check<TimeoutError>(sent, "[init] rank ", rank_, " cannot reach rank ", r, " at ", to.host,
                        " port ", to.port, why.empty() ? "" : ": ", why,
                        "; if the hosts reach each other by another interface, name it in "
                        "COHORT_SOCKET_IFNAME");
    peers_[static_cast<std::size_t>(r)].socket = std::move(socket);
  }
  for (int open = size_ - 1 - rank_; open > 0;) {
    if (deadline.passed()) {
      std::vector<int> missing;
      for (int r = rank_ + 1; r < size_; ++r) {
        if (!peers_[static_cast<std::size_t>(r)].socket) missing.push_back(r);
      }
      throw TimeoutError(str("[init] ", list_ranks(missing), " did not connect to rank ", rank_,
                             " at ", address, " in time"));
    }
    if (!poll_for(listener.fd.get(), POLLIN, deadline.sooner(Deadline::after(kSlice)))) continue;
    UniqueFd socket(::accept4(listener.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    Hello hello{};
    // Strangers are dropped: they do not know the nonce.
    if (!socket ||
        !read_all(socket.get(), &hello, sizeof(hello),
                  deadline.sooner(Deadline::after(Milliseconds(1'000)))) ||
        hello.magic != kMagic || hello.size != size_ || hello.nonce != nonce ||
        hello.rank <= rank_ || hello.rank >= size_ ||
        peers_[static_cast<std::size_t>(hello.rank)].socket) {
      continue;
    }
    tune_socket(socket.get());
    peers_[static_cast<std::size_t>(hello.rank)].socket = std::move(socket);
    --open;
  }
}

void Control::add(std::uint64_t group, Hearer* hearer) {
  const std::lock_guard lock(hear_mutex_);
  hearers_[group] = hearer;
  const auto early = early_.find(group);
  if (early != early_.end()) {
    for (const auto& [peer, word] : early->second) hearer->heard(peer, word);
    early_.erase(early);
  }
  for (const auto& [peer, how] : dead_) hearer->died(peer, how);
}

void Control::remove(std::uint64_t group) {
  const std::lock_guard lock(hear_mutex_);
  hearers_.erase(group);
  removed_.insert(group);
}

Hearer* Control::find(std::uint64_t group) {
  const auto found = hearers_.find(group);
  return found == hearers_.end() ? nullptr : found->second;
}

void Control::say(int peer, Word word) {
  if (peer == rank_) return;
  Frame frame{};
  frame.group = word.group;
  frame.bytes = static_cast<std::uint32_t>(word.body.size());
  frame.kind = word.kind;
  {
    const std::lock_guard lock(out_mutex_);
    std::string& out = peers_[static_cast<std::size_t>(peer)].out;
    out.append(reinterpret_cast<const char*>(&frame), sizeof(frame));
    out.append(word.body);
  }
  wake();
}

void Control::wake() {
  const std::uint64_t one = 1;
  // A full counter has woken the thread already.
  [[maybe_unused]] const ssize_t written = ::write(wake_.get(), &one, sizeof(one));
}

void Control::set_position(const Position& position) {
  const std::lock_guard lock(position_mutex_);
  position_ = position;
}

void Control::set_awaited(std::int32_t peer) {
  const std::lock_guard lock(position_mutex_);
  position_.awaited = peer;
}

Position Control::position() const {
  const std::lock_guard lock(position_mutex_);
  return position_;
}

void Control::run() {
  Deadline farewell = Deadline::after(Milliseconds(std::chrono::hours(1)));
  bool leaving = false;
  bool soon = false;
  while (true) {
    if (stopping_.load() && !std::exchange(leaving, true)) farewell = Deadline::after(kFarewell);
    if (leaving && (all_flushed() || farewell.passed())) return;
    std::vector<pollfd> entries{{wake_.get(), POLLIN, 0}};
    std::vector<int> ranks{-1};
    for (int r = 0; r < size_; ++r) {
      Peer& peer = peers_[static_cast<std::size_t>(r)];
      if (!peer.socket) continue;
      const std::lock_guard lock(out_mutex_);
      const short events = peer.out.empty() ? POLLIN : POLLIN | POLLOUT;
      entries.push_back({peer.socket.get(), events, 0});
      ranks.push_back(r);
    }
    ::poll(entries.data(), entries.size(), soon ? kSoonMs : kTickMs);
    std::uint64_t count = 0;
    [[maybe_unused]] const ssize_t drained = ::read(wake_.get(), &count, sizeof(count));
    for (std::size_t i = 1; i < entries.size(); ++i) {
      Peer& peer = peers_[static_cast<std::size_t>(ranks[i])];
      if ((entries[i].revents & POLLOUT) != 0) flush(peer);
      if ((entries[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0) read(ranks[i]);
    }
    soon = false;
    const std::lock_guard lock(hear_mutex_);
    for (const auto& [group, hearer] : hearers_) soon = hearer->tick() || soon;
  }
}

void Control::flush(Peer& peer) {
  const std::lock_guard lock(out_mutex_);
  const ssize_t sent =
      ::send(peer.socket.get(), peer.out.data(), peer.out.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) peer.out.erase(0, static_cast<std::size_t>(sent));
}

bool Control::all_flushed() {
  const std::lock_guard lock(out_mutex_);
  for (const Peer& peer : peers_) {
    if (peer.socket && !peer.out.empty()) return false;
  }
  return true;
}

void Control::read(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::array<char, 16'384> buffer;
  while (true) {
    const ssize_t got = ::recv(peer.socket.get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
    if (got > 0) {
      peer.in.append(buffer.data(), static_cast<std::size_t>(got));
      continue;
    }
    const int error = errno;
    if (got < 0 && error == EINTR) continue;
    take_words(rank);
    if (got == 0) {
      lose(rank, "its process ended");
    } else if (error != EAGAIN) {
      lose(rank, error == ECONNRESET
                     ? "its process ended"
                     : str("it cannot be reached (", std::generic_category().message(error), ')'));
    }
    return;
  }
}

void Control::take_words(int rank) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  std::size_t at = 0;
  const std::lock_guard lock(hear_mutex_);
  while (peer.in.size() - at >= sizeof(Frame)) {
    Frame frame{};
    std::memcpy(&frame, peer.in.data() + at, sizeof(frame));
    if (frame.bytes > kMaxBody) {  // no words of ours: like a death
      peer.in.clear();
      ::shutdown(peer.socket.get(), SHUT_RDWR);
      return;
    }
    if (peer.in.size() - at - sizeof(frame) < frame.bytes) break;
    Word word{frame.kind, frame.group, peer.in.substr(at + sizeof(frame), frame.bytes)};
    at += sizeof(frame) + frame.bytes;
    if (word.kind == Word::Kind::goodbye) {
      peer.closing = true;
    } else if (Hearer* hearer = find(word.group)) {
      hearer->heard(rank, word);
    } else if (!removed_.contains(word.group)) {
      early_[word.group].emplace_back(rank, std::move(word));
    }
  }
  peer.in.erase(0, at);
}

void Control::lose(int rank, const std::string& how) {
  Peer& peer = peers_[static_cast<std::size_t>(rank)];
  peer.socket.reset();
  if (peer.closing) return;
  const std::lock_guard lock(hear_mutex_);
  dead_[rank] = how;
  for (const auto& [group, hearer] : hearers_) hearer->died(rank, how);
}

}  // namespace cohort::comm::gloo
