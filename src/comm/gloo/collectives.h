#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/gloo/member.h"
#include "comm/parts.h"
#include "comm/sum_tree.h"
#include "comm/transport.h"

namespace cohort::comm::gloo {

// What goes before every collective from each rank to each other one. Hosts are alike in the order
// of their bytes.
struct Header {
  std::uint64_t signature;
  std::int64_t elements;
  std::int64_t for_you;  // all_to_all: elements for the receiver
  double scale;
  std::int32_t peer;
  Operation operation;
  ReduceOp reduce;
  DType dtype;
  bool refuses;  // allocate
  char owner[kOwnerBytes];
};

// What a tensor of up to this many bytes, or a part of one, needs no message of its own for.
inline constexpr std::int64_t kInlineBytes = 8 << 10;

// Collectives of ranks that reach each other through Gloo's TCP connections. Gloo moves bytes; the
// algorithms are ours. docs/collectives.md describes them; their parts lie in reduction.cpp,
// collectives.cpp (those that only copy), messages.cpp (point to point) and gloo_transport.cpp
// (agreement, allocation, splitting).
class GlooTransport : public Transport {
 public:
  GlooTransport(std::shared_ptr<Device> device, std::unique_ptr<Member> member, SumTree tree);
  ~GlooTransport() override;

  std::string_view name() const override { return "gloo"; }
  int rank() const override { return member_->rank(); }
  int size() const override { return member_->size(); }
  cohort::Device device() const override { return cohort::Device::cpu(); }
  std::int64_t eager_send_bytes() const override;

  std::int64_t all_reduce(const Call& call, void* data) override;
  std::int64_t reduce_scatter(const Call& call, void* out, const void* in,
                              std::span<const std::int64_t> counts) override;
  std::int64_t all_gather(const Call& call, void* out, const void* in,
                          std::span<const std::int64_t> counts) override;
  std::int64_t broadcast(const Call& call, void* data) override;
  std::int64_t all_to_all(const Call& call, void* out, std::span<const std::int64_t> out_counts,
                          const void* in, std::span<const std::int64_t> in_counts) override;
  std::int64_t send(const Call& call, const void* data) override;
  std::int64_t recv(const Call& call, void* data) override;
  void barrier(const Call& call) override;
  SymmetricMemory allocate(const Call& call, std::size_t bytes,
                           const std::string& refusal) override;
  std::optional<std::int64_t> expected_bytes(const Call& call, bool symmetric,
                                             bool in_place) const override;
  std::unique_ptr<Transport> split(const Call& call, const std::vector<int>& members,
                                   const std::string& name) override;
  void abort(const std::string& reason) noexcept override { member_->abort(reason); }
  void abort_text_follows() noexcept override { member_->abort_text_follows(); }
  void leave() noexcept override;
  std::exception_ptr failure(Operation operation) const override {
    return member_->failure(operation);
  }

 protected:
  // A message that is posted in several pieces, and how many of them are still to be awaited.
  struct Posted {
    std::unique_ptr<Buffer> buffer = {};
    int peer = -1;
    std::int64_t open = 0;
  };
  // One collective from the first header to its end.
  class Round;
  // What goes on between some ranks of a reduction: the g-th of `group` reduces part g.
  struct Reduction {
    std::vector<int> group;  // ranks that exchange, in the order of the sum
    int self;                // this rank's place among them
    const Parts& parts;      // of what travels to be summed, by place
    const std::byte* in;     // this rank's values of all parts
    std::byte* out;          // its reduced part
    std::byte* hand_back;    // all reduced parts, or null where only the own one is wanted
    const Parts& out_parts;  // of `hand_back`
    // Combines a piece: destination, sources by place, elements.
    std::function<void(void*, std::span<const void* const>, std::int64_t)> combine;
    // Where given: makes `bytes` of `in` from `at` on, before they are used.
    std::function<void(std::int64_t at, std::int64_t bytes)> prepare = {};
    // Where given: so many bytes of `hand_back` are there.
    std::function<void(std::int64_t at, std::int64_t bytes)> arrived = {};
  };

  Posted post_send(int peer, std::uint64_t slot, const void* data, std::int64_t bytes);
  Posted post_recv(int peer, std::uint64_t slot, void* data, std::int64_t bytes);
  void await_sent(Posted& posted);
  void await_received(Posted& posted);
  // Returns the bytes sent.
  std::int64_t exchange(const Reduction& reduction);
  std::int64_t small_all_reduce(const Call& call, void* data);
  std::int64_t broadcast_whole(int root, const std::vector<int>& receivers, void* data,
                               std::int64_t bytes);
  std::int64_t broadcast_shares(int root, const std::vector<int>& receivers, std::byte* data,
                                std::int64_t bytes);
  // Memory that stays for the next call, for what arrives before it is summed.
  std::byte* staging(std::int64_t bytes);

  // Forms the group's child among `members`, all of whom call it.
  std::unique_ptr<Member> split_member(const Call& call, const std::vector<int>& members,
                                       const std::string& name);
  std::vector<int> hosts_of(const std::vector<int>& members) const;
  // Agrees on a refusal: OutOfMemory on all ranks when one has a reason.
  void agree_to_allocate(Round& round, std::size_t bytes, const std::string& refusal);

  const std::shared_ptr<Device> device_;
  const std::unique_ptr<Member> member_;
  const SumTree tree_;
  std::uint64_t sequence_ = 0;  // of the current collective

 private:
  // The header to and from one peer, with room for what follows it.
  struct Envelope {
    std::vector<std::byte> in;
    std::vector<std::byte> out;
    std::unique_ptr<Buffer> in_buffer;
    std::unique_ptr<Buffer> out_buffer;
    bool in_posted = false;
    bool out_posted = false;
  };
  // A message that does not wait for its receiver.
  struct Eager {
    std::vector<std::byte> bytes;
    std::unique_ptr<Buffer> buffer;
  };
  struct Messages {
    std::deque<Eager> eager;
    std::int64_t eager_bytes = 0;
  };
  Envelope& envelope(int peer) { return envelopes_[static_cast<std::size_t>(peer)]; }
  void expect_header(int peer);
  void drop_oldest(int peer);

  std::vector<Envelope> envelopes_;  // by peer
  std::vector<Messages> messages_;
  std::vector<std::byte> message_;  // what arrives point to point
  std::vector<std::byte> staging_;
};

// Each collective is a Round: begin, say() to all, meet(), its own exchange, finish(). Without
// finish() it has failed.
class GlooTransport::Round {
 public:
  Round(GlooTransport& transport, const Call& call, std::uint64_t counts_hash = 0);
  ~Round();
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

  // Sends this rank's header to `peer`, with up to kInlineBytes behind it.
  void say(int peer, const void* data = nullptr, std::int64_t bytes = 0, std::int64_t for_you = 0);
  void say_all(const void* data = nullptr, std::int64_t bytes = 0);
  // Waits for the headers of all, which must agree.
  void meet();
  const Header& header(int peer) const;
  // What came behind the header.
  const std::byte* payload(int peer) const;
  void refuse() { own_.refuses = true; }
  void finish();

 private:
  GlooTransport& transport_;
  const NoSigpipe guard_;
  const Call& call_;
  Header own_{};
  bool done_ = false;
};

// A collective's peers, beginning behind this rank, so that the ranks do not all begin with the
// same one.
template <typename F>
void for_each_peer(int rank, int size, F fn) {
  for (int i = 1; i < size; ++i) fn((rank + i) % size);
}

}  // namespace cohort::comm::gloo
