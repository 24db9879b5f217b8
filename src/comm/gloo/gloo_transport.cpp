#include "comm/gloo/gloo_transport.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "cohort/core/error.h"
#include "comm/gloo/collectives.h"
#include "comm/gloo/hierarchical.h"
#include "comm/gloo/slots.h"
#include "comm/shm/memory_left.h"

namespace cohort::comm::gloo {
namespace {

Call call_of(const Header& header) {
  return {
      .operation = header.operation,
      .reduce = header.reduce,
      .dtype = header.dtype,
      .elements = header.elements,
      .peer = header.peer,
      .scale = header.scale,
      .owner = std::string(header.owner, strnlen(header.owner, kOwnerBytes)),
  };
}

// How long a leaving rank offers its small messages.
constexpr Milliseconds kUnreceived{5'000};

constexpr std::size_t kEnvelopeBytes = sizeof(Header) + static_cast<std::size_t>(kInlineBytes);

// Pages of this process, reserved and entered in its tables; null when there is no room.
std::shared_ptr<void> reserve_pages(std::size_t bytes) {
  if (bytes > shm::memory_left()) return nullptr;
  void* memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  return {memory, [bytes](void* pages) { ::munmap(pages, bytes); }};
}

}  // namespace

void check_gloo_is_built() {}

std::unique_ptr<Transport> make_gloo_transport(Store& store, int rank, int size,
                                               const std::string& group, Milliseconds timeout,
                                               const GlooOptions& options) {
  const Deadline deadline = Deadline::after(timeout);
  auto control = std::make_shared<Control>(store, rank, size, options.address, deadline);
  auto device = make_device(options.address);
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<int> host_of = options.host_of;
  host_of.resize(static_cast<std::size_t>(size), 0);
  const SumTree tree(host_of);
  // The first group of its control; those split from it have other numbers.
  constexpr std::uint64_t kFirst = 1;
  auto member = std::make_unique<Member>(std::move(control),
                                         std::make_unique<Mesh>(device, rank, size, deadline),
                                         kFirst, std::move(ranks), rank, group);
  member->connect(deadline.left());
  if (!options.hierarchical) {
    return std::make_unique<GlooTransport>(std::move(device), std::move(member), tree);
  }
  std::unique_ptr<Transport> local;
  const std::vector<int>& host = tree.hosts()[static_cast<std::size_t>(tree.host(rank))];
  if (host.size() > 1) {
    local = make_local(options.link, tree.place(rank), static_cast<int>(host.size()), group,
                       deadline.left());
  }
  return std::make_unique<HierarchicalTransport>(std::move(device), std::move(member), tree,
                                                 std::move(local));
}

GlooTransport::GlooTransport(std::shared_ptr<Device> device, std::unique_ptr<Member> member,
                             SumTree tree)
    : device_(std::move(device)),
      member_(std::move(member)),
      tree_(std::move(tree)),
      envelopes_(static_cast<std::size_t>(size())),
      messages_(static_cast<std::size_t>(size())) {
  const NoSigpipe guard;
  for_each_peer(rank(), size(), [&](int peer) {
    Envelope& one = envelope(peer);
    one.in.resize(kEnvelopeBytes);
    one.out.resize(kEnvelopeBytes);
    one.in_buffer = member_->mesh().buffer(one.in.data(), kEnvelopeBytes);
    one.out_buffer = member_->mesh().buffer(one.out.data(), kEnvelopeBytes);
    expect_header(peer);
  });
}

GlooTransport::~GlooTransport() {
  GlooTransport::leave();
}

void GlooTransport::leave() noexcept {
  member_->leave();
  // Small messages that nobody has received yet are given up after a while.
  const Deadline deadline = Deadline::after(kUnreceived);
  for (Messages& messages : messages_) {
    try {
      for (Eager& eager : messages.eager) {
        if (!member_->failed()) eager.buffer->waitSend(deadline.left() + Milliseconds(1));
      }
    } catch (const std::exception&) {
      break;  // its receiver has gone, too, or the time is over
    }
  }
  if (!member_->failed()) messages_.clear();
}

// The header of the next collective may come before this rank does.
void GlooTransport::expect_header(int peer) {
  member_->post(peer, [&] { envelope(peer).in_buffer->recv(peer, kHeaderSlot); });
  envelope(peer).in_posted = true;
}

GlooTransport::Posted GlooTransport::post_send(int peer, std::uint64_t slot, const void* data,
                                               std::int64_t bytes) {
  Posted posted{member_->mesh().buffer(const_cast<void*>(data), static_cast<std::size_t>(bytes)),
                peer, 1};
  member_->post(peer, [&] { posted.buffer->send(peer, slot); });
  return posted;
}

GlooTransport::Posted GlooTransport::post_recv(int peer, std::uint64_t slot, void* data,
                                               std::int64_t bytes) {
  Posted posted{member_->mesh().buffer(data, static_cast<std::size_t>(bytes)), peer, 1};
  member_->post(peer, [&] { posted.buffer->recv(peer, slot); });
  return posted;
}

void GlooTransport::await_sent(Posted& posted) {
  for (; posted.open > 0; --posted.open) member_->await_send(*posted.buffer, posted.peer);
}

void GlooTransport::await_received(Posted& posted) {
  for (; posted.open > 0; --posted.open) member_->await_recv(*posted.buffer, posted.peer);
}

std::byte* GlooTransport::staging(std::int64_t bytes) {
  if (staging_.size() < static_cast<std::size_t>(bytes)) {
    staging_ = {};
    staging_.resize(static_cast<std::size_t>(bytes));
  }
  return staging_.data();
}

GlooTransport::Round::Round(GlooTransport& transport, const Call& call, std::uint64_t counts_hash)
    : transport_(transport), call_(call) {
  const std::uint64_t sequence = ++transport_.sequence_;
  own_.signature = signature(call, sequence, counts_hash);
  own_.elements = call.elements;
  own_.scale = call.scale;
  own_.peer = call.peer;
  own_.operation = call.operation;
  own_.reduce = call.reduce;
  own_.dtype = call.dtype;
  call.owner.copy(own_.owner, kOwnerBytes - 1);
  transport_.member_->begin(call, sequence);
}

GlooTransport::Round::~Round() {
  transport_.member_->end(done_);
}

void GlooTransport::Round::say(int peer, const void* data, std::int64_t bytes,
                               std::int64_t for_you) {
  Envelope& envelope = transport_.envelope(peer);
  own_.for_you = for_you;
  std::memcpy(envelope.out.data(), &own_, sizeof(own_));
  if (bytes > 0) {
    std::memcpy(envelope.out.data() + sizeof(own_), data, static_cast<std::size_t>(bytes));
  }
  transport_.member_->post(peer, [&] {
    envelope.out_buffer->send(peer, kHeaderSlot, 0, sizeof(own_) + static_cast<std::size_t>(bytes));
  });
  envelope.out_posted = true;
}

void GlooTransport::Round::say_all(const void* data, std::int64_t bytes) {
  for_each_peer(transport_.rank(), transport_.size(), [&](int peer) { say(peer, data, bytes); });
}

void GlooTransport::Round::meet() {
  std::vector<Said> said(static_cast<std::size_t>(transport_.size()));
  said[static_cast<std::size_t>(transport_.rank())] = {own_.signature, call_};
  bool agreed = true;
  for_each_peer(transport_.rank(), transport_.size(), [&](int peer) {
    Envelope& envelope = transport_.envelope(peer);
    transport_.member_->await_recv(*envelope.in_buffer, peer);
    envelope.in_posted = false;
    agreed = agreed && header(peer).signature == own_.signature;
  });
  if (agreed) return;
  for_each_peer(transport_.rank(), transport_.size(), [&](int peer) {
    said[static_cast<std::size_t>(peer)] = {header(peer).signature, call_of(header(peer))};
  });
  transport_.member_->fail(FailureKind::mismatch, transport_.rank(), describe_mismatch(said));
}

const Header& GlooTransport::Round::header(int peer) const {
  return *reinterpret_cast<const Header*>(transport_.envelope(peer).in.data());
}

const std::byte* GlooTransport::Round::payload(int peer) const {
  return transport_.envelope(peer).in.data() + sizeof(Header);
}

void GlooTransport::Round::finish() {
  for_each_peer(transport_.rank(), transport_.size(), [&](int peer) {
    Envelope& envelope = transport_.envelope(peer);
    if (envelope.out_posted) transport_.member_->await_send(*envelope.out_buffer, peer);
    envelope.out_posted = false;
    if (!envelope.in_posted) transport_.expect_header(peer);
  });
  done_ = true;
}

void GlooTransport::barrier(const Call& call) {
  Round round(*this, call);
  round.say_all();
  round.meet();
  round.finish();
}

void GlooTransport::agree_to_allocate(Round& round, std::size_t bytes, const std::string& refusal) {
  if (!refusal.empty()) round.refuse();
  round.say_all();
  round.meet();
  std::string refusing = refusal.empty() ? "" : std::to_string(rank());
  for (int r = 0; r < size(); ++r) {
    if (r != rank() && round.header(r).refuses) {
      refusing += (refusing.empty() ? "" : ", ") + std::to_string(r);
    }
  }
  round.finish();
  check<OutOfMemory>(refusing.empty(), "[allocate] ", bytes,
                     " bytes of symmetric memory do not fit ",
                     refusal.empty() ? str("on rank ", refusing) : str("into ", refusal), " (rank ",
                     rank(), " of ", size(), ", group '", member_->group(), "')");
}

SymmetricMemory GlooTransport::allocate(const Call& call, std::size_t bytes,
                                        const std::string& refusal) {
  Round round(*this, call);
  std::shared_ptr<void> pages = refusal.empty() ? reserve_pages(bytes) : nullptr;
  agree_to_allocate(round, bytes,
                    pages || !refusal.empty() ? refusal : "the memory that is left on this host");
  return {.data = pages.get(), .first = nullptr, .owner = pages};
}

std::vector<int> GlooTransport::hosts_of(const std::vector<int>& members) const {
  std::vector<int> hosts;
  for (const int r : members) hosts.push_back(tree_.host(r));
  return hosts;
}

std::unique_ptr<Member> GlooTransport::split_member(const Call& call,
                                                    const std::vector<int>& members,
                                                    const std::string& name) {
  member_->check_running();
  std::vector<int> first_ranks;
  for (const int r : members) {
    first_ranks.push_back(member_->first_ranks()[static_cast<std::size_t>(r)]);
  }
  const auto self = std::find(members.begin(), members.end(), rank());
  const auto child_rank = static_cast<int>(self - members.begin());
  // Equal on all members, and unlike that of any other group of this job.
  const std::uint64_t id = Hash()
                               .add(member_->id())
                               .add(sequence_)
                               .add(static_cast<std::uint64_t>(members.front()))
                               .value();
  const auto size = static_cast<int>(members.size());
  auto child = std::make_unique<Member>(
      member_->control(),
      std::make_unique<Mesh>(device_, child_rank, size, Deadline::after(call.timeout)), id,
      std::move(first_ranks), child_rank, name);
  child->connect(call.timeout);
  return child;
}

std::unique_ptr<Transport> GlooTransport::split(const Call& call, const std::vector<int>& members,
                                                const std::string& name) {
  return std::make_unique<GlooTransport>(device_, split_member(call, members, name),
                                         SumTree(hosts_of(members)));
}

}  // namespace cohort::comm::gloo
