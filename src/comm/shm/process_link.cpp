#include "comm/shm/process_link.h"

#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "comm/shm/socket.h"

namespace cohort::comm::shm {
namespace {

constexpr std::uint64_t kMagic = 0x636f686f72743031;  // "cohort01"
constexpr Milliseconds kSlice{20};

// The first message on a connection, from the rank that connected, and the answer. The nonce is the
// receiver's own, as published in the store: who knows it belongs to the job.
struct Hello {
  std::uint64_t magic;
  std::int32_t rank;
  std::int32_t size;
  Nonce nonce;
};

// Hands over a segment, whose file comes along, or says why there is none.
struct Handover {
  std::uint64_t magic;
  std::uint64_t tag;
  std::uint64_t bytes;
  std::uint32_t has_segment;
  char reason[228];
};

// A rank's own side of the meeting.
struct Address {
  std::string name;
  Nonce nonce{};
};

struct Peer {
  Descriptor socket;
  Descriptor process;  // readable once it has ended; survives a child that inherited the socket
};

// The connections of one rank to all others of its first group; groups split from it share them.
struct Mesh {
  std::vector<Peer> peers;  // by rank; this rank's own is empty
};

class ProcessLink final : public Link {
 public:
  ProcessLink(std::shared_ptr<Mesh> mesh, std::vector<int> members, int self)
      : mesh_(std::move(mesh)), members_(std::move(members)), self_(self) {}

  void offer(std::uint64_t tag, const std::shared_ptr<Mapping>& segment, const std::string& reason,
             const Poll& poll) override {
    Handover message{};
    message.magic = kMagic;
    message.tag = tag;
    message.bytes = segment ? segment->bytes() : 0;
    message.has_segment = segment ? 1 : 0;
    reason.copy(message.reason, sizeof(message.reason) - 1);
    for (const int member : members_) {
      if (member == self_) continue;
      const bool sent = send_bytes(peer(member).socket, &message, sizeof(message),
                                   segment ? segment->file() : -1);
      if (!sent) poll();  // names a rank that is gone
      check<Error>(sent, "[shared memory] rank ", member, " takes no segment");
    }
  }

  std::shared_ptr<Mapping> receive(std::uint64_t tag, std::size_t bytes,
                                   const Poll& poll) override {
    Handover message{};
    Descriptor file;
    const Descriptor& socket = peer(members_[0]).socket;
    // poll() comes before an end of the connection becomes an error of its own.
    do {
      poll();
    } while (!receive_bytes(socket, &message, sizeof(message), file, kSlice));
    check<MismatchError>(message.magic == kMagic && message.tag == tag,
                         "[shared memory] a segment arrived that belongs to another call; the "
                         "ranks use their groups in different orders");
    message.reason[sizeof(message.reason) - 1] = '\0';
    if (message.has_segment == 0) throw OutOfMemory(message.reason);
    check<Error>(static_cast<bool>(file),
                 "[shared memory] a segment arrived without its file; is "
                 "the limit of open files reached?");
    return Mapping::adopt(std::move(file), bytes);
  }

  bool gone(int rank) override {
    const int member = members_[static_cast<std::size_t>(rank)];
    return member != self_ && hung_up(peer(member).socket, peer(member).process);
  }

  std::shared_ptr<Link> subset(const std::vector<int>& members) override {
    std::vector<int> chosen;
    for (const int member : members) chosen.push_back(members_[static_cast<std::size_t>(member)]);
    return std::make_shared<ProcessLink>(mesh_, std::move(chosen), self_);
  }

 private:
  Peer& peer(int member) const { return mesh_->peers[static_cast<std::size_t>(member)]; }

  const std::shared_ptr<Mesh> mesh_;
  const std::vector<int> members_;  // by rank of this group: ranks of the mesh
  const int self_;                  // in the mesh
};

std::string key(const char* what, int rank) {
  return str("shm/", what, '/', rank);
}

// All ranks come to the same refusal; the store may be rank 0's own, and must not go before the
// others have read from it what they come to it by.
void let_all_see(Store& store, int rank, int size) {
  constexpr Milliseconds kPatience{5'000};
  try {
    store.set(key("seen", rank), "", kPatience);
    std::vector<std::string> keys;
    for (int r = 0; r < size; ++r) keys.push_back(key("seen", r));
    if (rank == 0) store.wait(keys, kPatience);
  } catch (const Error&) {
    return;  // somebody is slower than that, or has gone
  }
}

class Meeting {
 public:
  Meeting(Store& store, int rank, int size, Milliseconds timeout)
      : store_(store), rank_(rank), size_(size), deadline_(Deadline::after(timeout)) {
    mesh_->peers.resize(static_cast<std::size_t>(size));
  }

  Hosts hold() {
    own_.nonce = random_nonce();
    const Descriptor listener = listen_abstract(own_.name);
    store_.set(key("address", rank_), own_.name + ' ' + to_hex(own_.nonce), deadline_.left());
    publish_reach();
    agree_on_reach();
    accept_higher(listener);
    await_answers();
    std::vector<int> members;
    for (int r = 0; r < size_; ++r) {
      if (shares_host(r)) members.push_back(r);
      if (shares_host(r) && r != rank_) peer(r).process = watch_process(peer(r).socket);
    }
    Hosts hosts{host_of_, nullptr};
    if (members.size() > 1) {
      hosts.link = std::make_shared<ProcessLink>(std::move(mesh_), std::move(members), rank_);
    }
    return hosts;
  }

 private:
  Peer& peer(int rank) { return mesh_->peers[static_cast<std::size_t>(rank)]; }

  Address address_of(int rank) {
    const std::string text = store_.get(key("address", rank), deadline_.left());
    const std::size_t space = text.find(' ');
    const auto nonce =
        space == std::string::npos ? std::nullopt : nonce_from_hex(text.substr(space + 1));
    check<StoreError>(nonce.has_value(), "[init] the store holds '", text,
                      "' where the socket of rank ", rank, " should be");
    return {text.substr(0, space), *nonce};
  }

  // Connects to the lower ranks, and tells all which could not be reached.
  void publish_reach() {
    std::string unreachable;
    for (int r = 0; r < rank_; ++r) {
      const Address address = address_of(r);
      auto socket = connect_abstract(address.name);
      const Hello hello{kMagic, rank_, size_, address.nonce};
      if (socket && same_user(*socket) && send_bytes(*socket, &hello, sizeof(hello))) {
        peer(r).socket = std::move(*socket);
      } else {
        unreachable += str(r, ' ');
      }
    }
    store_.set(key("unreachable", rank_), unreachable, deadline_.left());
  }

  // Each rank's host is named by the lowest rank that it reaches; all ranks see the same.
  void agree_on_reach() {
    for (int r = 0; r < size_; ++r) {
      std::vector<bool> reaches(static_cast<std::size_t>(r), true);
      std::istringstream unreachable(store_.get(key("unreachable", r), deadline_.left()));
      for (std::size_t other = 0; unreachable >> other;) {
        if (other < reaches.size()) reaches[other] = false;
      }
      int host = 0;
      while (host < r && !reaches[static_cast<std::size_t>(host)]) ++host;
      for (int other = 0; other < r; ++other) {
        const bool same = host_of_[static_cast<std::size_t>(other)] == host;
        if (same != reaches[static_cast<std::size_t>(other)]) let_all_see(store_, rank_, size_);
        check<NotSupported>(same == reaches[static_cast<std::size_t>(other)],
                            "[init] the hosts do not come apart: rank ", r,
                            same ? " cannot reach rank " : " reaches rank ", other,
                            " over local sockets, and rank ", host,
                            " as well; start the ranks of a host in one network namespace and as "
                            "one user");
      }
      host_of_.push_back(host);
    }
  }

  bool shares_host(int rank) const {
    return host_of_[static_cast<std::size_t>(rank)] == host_of_[static_cast<std::size_t>(rank_)];
  }

  // Strangers are dropped: they do not know the nonce.
  void accept_higher(const Descriptor& listener) {
    int open = 0;
    for (int r = rank_ + 1; r < size_; ++r) open += shares_host(r) ? 1 : 0;
    while (open > 0) {
      check_deadline("did not connect");
      auto socket = accept_same_user(listener, kSlice);
      if (!socket) continue;
      Hello hello{};
      if (!said_hello(*socket, hello, Milliseconds(1000)) || hello.rank <= rank_ ||
          hello.rank >= size_ || !shares_host(hello.rank) || peer(hello.rank).socket) {
        continue;
      }
      const Hello answer{kMagic, rank_, size_, own_.nonce};
      if (!send_bytes(*socket, &answer, sizeof(answer))) continue;
      peer(hello.rank).socket = std::move(*socket);
      --open;
    }
  }

  bool said_hello(const Descriptor& socket, Hello& hello, Milliseconds slice) {
    try {
      Descriptor file;
      return receive_bytes(socket, &hello, sizeof(hello), file, slice) && hello.magic == kMagic &&
             hello.size == size_ && hello.nonce == own_.nonce;
    } catch (const Error&) {
      return false;
    }
  }

  void await_answers() {
    for (int r = 0; r < rank_; ++r) {
      if (!shares_host(r)) continue;
      const Address address = address_of(r);
      Hello answer{};
      Descriptor file;
      while (!receive_bytes(peer(r).socket, &answer, sizeof(answer), file, kSlice)) {
        check_deadline("did not answer");
      }
      check<Error>(answer.magic == kMagic && answer.rank == r && answer.nonce == address.nonce,
                   "[init] the socket of rank ", r, " is held by somebody else");
    }
  }

  void check_deadline(const char* what) {
    if (!deadline_.passed()) return;
    std::string missing;
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && shares_host(r) && !peer(r).socket)
        missing += (missing.empty() ? "" : ", ") + std::to_string(r);
    }
    throw TimeoutError(
        str("[init] rank ", missing, ' ', what, " in time (rank ", rank_, " of ", size_, ")"));
  }

  Store& store_;
  const int rank_;
  const int size_;
  const Deadline deadline_;
  Address own_;
  std::vector<int> host_of_;
  std::shared_ptr<Mesh> mesh_ = std::make_shared<Mesh>();
};

}  // namespace

bool Hosts::one() const {
  return std::all_of(host_of.begin(), host_of.end(), [&](int host) { return host == 0; });
}

Hosts find_hosts(Store& store, int rank, int size, Milliseconds timeout) {
  return Meeting(store, rank, size, timeout).hold();
}

std::shared_ptr<Link> connect_processes(Store& store, int rank, int size, Milliseconds timeout) {
  Hosts hosts = find_hosts(store, rank, size, timeout);
  if (!hosts.one()) let_all_see(store, rank, size);
  for (int r = 1; r < size; ++r) {
    check<NotSupported>(hosts.host_of[static_cast<std::size_t>(r)] == 0, "[init] rank ", r,
                        " does not share a host with rank 0 (backend shm, rank ", rank, " of ",
                        size,
                        "); start all ranks on one host, in one network namespace and as one "
                        "user, or choose backend auto");
  }
  return std::move(hosts.link);
}

}  // namespace cohort::comm::shm
