#include "comm/gloo/hierarchical.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/core/error.h"
#include "comm/gloo/slots.h"
#include "comm/reduce.h"

namespace cohort::comm::gloo {
namespace {

// The whole group watches over deadlines; a host's own group is slower to give up, so that the
// message is the whole group's.
constexpr Milliseconds kLocalGrace{10'000};

std::unique_ptr<shm::ShmTransport> as_shm(std::unique_ptr<Transport> transport) {
  return std::unique_ptr<shm::ShmTransport>(static_cast<shm::ShmTransport*>(transport.release()));
}

}  // namespace

std::unique_ptr<Transport> make_local(const std::shared_ptr<shm::Link>& link, int place, int size,
                                      const std::string& group, Milliseconds timeout) {
  return shm::make_shm_transport(link, place, size, group + "/host", timeout);
}

HierarchicalTransport::HierarchicalTransport(std::shared_ptr<Device> device,
                                             std::unique_ptr<Member> member, SumTree tree,
                                             std::unique_ptr<Transport> local)
    : GlooTransport(std::move(device), std::move(member), std::move(tree)),
      local_(as_shm(std::move(local))),
      host_(tree_.host(rank())),
      place_(tree_.place(rank())),
      slices_(local_size()) {
  for (const std::vector<int>& ranks : tree_.hosts()) {
    slices_ = std::min(slices_, static_cast<int>(ranks.size()));
    regular_ = regular_ && ranks.size() == host().size() &&
               ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  }
  member_->on_failure([local = local_.get()](const std::string& reason) {
    if (local != nullptr) local->abort(reason);
  });
}

HierarchicalTransport::~HierarchicalTransport() {
  HierarchicalTransport::leave();
  member_->on_failure(nullptr);
}

void HierarchicalTransport::leave() noexcept {
  GlooTransport::leave();
  if (local_) local_->leave();
}

template <typename Step>
auto HierarchicalTransport::locally(Step step) {
  member_->check_running();
  const auto& ranks = host();
  member_->show_awaited(ranks[static_cast<std::size_t>((place_ + 1) % local_size())]);
  try {
    return step();
  } catch (const PeerError& error) {
    const int place = std::clamp(error.rank(), 0, local_size() - 1);
    member_->fail_unless_told(ranks[static_cast<std::size_t>(place)],
                              str("on one host: ", error.what()));
  } catch (const CommError& error) {
    member_->fail_unless_told(rank(), str("on one host: ", error.what()));
  }
}

Call HierarchicalTransport::local_call(const Call& call, std::int64_t elements) const {
  Call local = call;
  local.elements = elements;
  local.peer = -1;
  local.timeout = call.timeout + kLocalGrace;
  return local;
}

std::vector<int> HierarchicalTransport::slice_owners() const {
  std::vector<int> owners;
  for (const std::vector<int>& ranks : tree_.hosts()) {
    owners.push_back(ranks[static_cast<std::size_t>(place_)]);
  }
  return owners;
}

std::vector<std::int64_t> HierarchicalTransport::counts_of(std::span<const std::int64_t> counts,
                                                           int host) const {
  std::vector<std::int64_t> chosen;
  for (const int r : tree_.hosts()[static_cast<std::size_t>(host)]) {
    chosen.push_back(counts[static_cast<std::size_t>(r)]);
  }
  return chosen;
}

std::byte* HierarchicalTransport::partials(std::int64_t bytes) {
  if (partials_.size() < static_cast<std::size_t>(bytes)) {
    partials_ = {};
    partials_.resize(static_cast<std::size_t>(bytes));
  }
  return partials_.data();
}

// This rank's part of the host's sum, unrounded.
void HierarchicalTransport::sum_locally(const Call& call, void* partial, const void* in,
                                        std::span<const std::int64_t> counts) {
  const std::int64_t elements = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  if (!local_) return reduce_to_partial(partial, {&in, 1}, elements, call.dtype, call.reduce);
  const Call own = local_call(call, elements);
  locally([&] { return local_->reduce_scatter_partial(own, partial, in, counts); });
}

// The host's parts, from each of its ranks to all of them.
void HierarchicalTransport::gather_locally(const Call& call, std::byte* whole, const void* own,
                                           std::span<const std::int64_t> counts) {
  if (!local_) return;
  const Call shared =
      local_call(call, std::accumulate(counts.begin(), counts.end(), std::int64_t{0}));
  locally([&] { return local_->all_gather(shared, whole, own, counts); });
}

std::int64_t HierarchicalTransport::all_reduce(const Call& call, void* data) {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  if (call.elements * item <= kInlineBytes) return small_all_reduce(call, data);
  Round round(*this, call);
  round.say_all();
  round.meet();
  std::int64_t moved = 0;
  const auto directly = [&](std::span<void* const> tensors) {
    moved = reduce_slice(call, tensors, slice_counts(call));
  };
  const Call local = local_call(call, call.elements);
  if (!local_) {
    directly({&data, 1});
  } else if (!locally([&] { return local_->on_all_tensors(local, data, directly); })) {
    moved = staged_all_reduce(call, data);
  }
  round.finish();
  return moved;
}

std::vector<std::int64_t> HierarchicalTransport::slice_counts(const Call& call) const {
  return share_counts(call.elements, static_cast<std::int64_t>(item_size(call.dtype)), slices_,
                      local_size());
}

// What the ranks that look after this slice do with the tensors of all ranks of their hosts: each
// piece is summed on the host just before it is sent, or combined with the other hosts', and is
// copied to the host's other ranks as soon as it is there.
std::int64_t HierarchicalTransport::reduce_slice(const Call& call, std::span<void* const> tensors,
                                                 const std::vector<std::int64_t>& counts) {
  if (place_ >= slices_) return 0;
  const Parts slices = parts_of(counts, call.dtype);
  const std::int64_t begin = slices.offset(place_);
  const auto wide = static_cast<std::int64_t>(item_size(partial_dtype(call.dtype)));
  std::byte* const partial = partials(slices.bytes(place_) / slices.item * wide);
  std::vector<const void*> sources(tensors.size());
  const auto prepare = [&](std::int64_t at, std::int64_t bytes) {
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      sources[k] = static_cast<const std::byte*>(tensors[k]) + begin + at / wide * slices.item;
    }
    reduce_to_partial(partial + at, sources, bytes / wide, call.dtype, call.reduce);
  };
  const auto own = static_cast<std::size_t>(place_);
  const auto arrived = [&](std::int64_t at, std::int64_t bytes) {
    for (std::size_t k = 0; k < tensors.size(); ++k) {
      if (k == own) continue;
      std::copy_n(static_cast<const std::byte*>(tensors[own]) + begin + at, bytes,
                  static_cast<std::byte*>(tensors[k]) + begin + at);
    }
  };
  std::byte* const slice = static_cast<std::byte*>(tensors[own]) + begin;
  return slices.bytes(place_) * static_cast<std::int64_t>(tensors.size() - 1) +
         exchange_slice(call, partial, slice, counts[own], prepare, arrived);
}

// The exchange between the hosts: this host's partial results of a slice against the slice.
std::int64_t HierarchicalTransport::exchange_slice(
    const Call& call, const std::byte* partial, std::byte* slice, std::int64_t elements,
    std::function<void(std::int64_t, std::int64_t)> prepare,
    std::function<void(std::int64_t, std::int64_t)> arrived) {
  const auto hosts = static_cast<int>(tree_.hosts().size());
  const auto shares =
      share_counts(elements, static_cast<std::int64_t>(item_size(call.dtype)), hosts, hosts);
  const Parts back = parts_of(shares, call.dtype);
  const Parts there = parts_of(shares, partial_dtype(call.dtype));
  const Finish finish = finish_for(call.reduce, call.scale, size());
  return exchange({slice_owners(), host_, there, partial, slice + back.offset(host_), slice, back,
                   [&](void* out, std::span<const void* const> sources, std::int64_t count) {
                     reduce_partials(out, sources, count, call.dtype, call.reduce, finish);
                   },
                   std::move(prepare), std::move(arrived)});
}

std::int64_t HierarchicalTransport::staged_all_reduce(const Call& call, void* data) {
  const std::vector<std::int64_t> counts = slice_counts(call);
  const Parts slices = parts_of(counts, call.dtype);
  const std::int64_t own = counts[static_cast<std::size_t>(place_)];
  std::byte* const slice = static_cast<std::byte*>(data) + slices.offset(place_);
  std::byte* const partial =
      partials(own * static_cast<std::int64_t>(item_size(partial_dtype(call.dtype))));
  sum_locally(call, partial, data, counts);
  std::int64_t moved = own * slices.item;
  if (place_ < slices_) moved += exchange_slice(call, partial, slice, own, {}, {});
  gather_locally(call, static_cast<std::byte*>(data), slice, counts);
  return moved;
}

std::int64_t HierarchicalTransport::reduce_scatter(const Call& call, void* out, const void* in,
                                                   std::span<const std::int64_t> counts) {
  if (!regular_) return GlooTransport::reduce_scatter(call, out, in, counts);
  Round round(*this, call, hash_counts(counts));
  round.say_all();
  round.meet();
  const Parts parts = parts_of(counts, call.dtype);
  std::vector<std::int64_t> mine;  // by host: the part of its rank at this place
  for (const int r : slice_owners()) mine.push_back(counts[static_cast<std::size_t>(r)]);
  const Parts there = parts_of(mine, partial_dtype(call.dtype));
  const Parts back = parts_of(mine, call.dtype);
  const auto hosts = static_cast<int>(tree_.hosts().size());
  std::byte* const sums = partials(there.offset(hosts - 1) + there.bytes(hosts - 1));
  for (int h = 0; h < hosts; ++h) {
    const int first = tree_.hosts()[static_cast<std::size_t>(h)].front();
    sum_locally(call, sums + there.offset(h),
                static_cast<const std::byte*>(in) + parts.offset(first), counts_of(counts, h));
  }
  const Finish finish = finish_for(call.reduce, call.scale, size());
  const std::int64_t moved =
      exchange({slice_owners(), host_, there, sums, static_cast<std::byte*>(out), nullptr, back,
                [&](void* to, std::span<const void* const> sources, std::int64_t count) {
                  reduce_partials(to, sources, count, call.dtype, call.reduce, finish);
                }});
  round.finish();
  return moved + there.offset(hosts - 1) + there.bytes(hosts - 1);
}

std::int64_t HierarchicalTransport::all_gather(const Call& call, void* out, const void* in,
                                               std::span<const std::int64_t> counts) {
  const Parts parts = parts_of(counts, call.dtype);
  if (!regular_ || parts.largest() <= kInlineBytes) {
    return GlooTransport::all_gather(call, out, in, counts);
  }
  Round round(*this, call, hash_counts(counts));
  round.say_all();
  round.meet();
  auto* const whole = static_cast<std::byte*>(out);
  const std::int64_t own = parts.bytes(rank());
  std::vector<Posted> arriving;
  std::vector<Posted> sent;
  const std::vector<int> owners = slice_owners();
  for (const int r : owners) {
    if (r == rank() || parts.bytes(r) == 0) continue;
    arriving.push_back(post_recv(r, kDataSlot, whole + parts.offset(r), parts.bytes(r)));
  }
  for (const int r : owners) {
    if (r != rank() && own > 0) sent.push_back(post_send(r, kDataSlot, in, own));
  }
  std::int64_t moved = own * local_size();
  for (std::size_t h = 0; h < owners.size(); ++h) {
    const int r = owners[h];
    for (Posted& one : arriving) {
      if (one.peer == r) await_received(one);
    }
    const int first = tree_.hosts()[h].front();
    gather_locally(call, whole + parts.offset(first), r == rank() ? in : whole + parts.offset(r),
                   counts_of(counts, static_cast<int>(h)));
    moved += parts.bytes(r);
  }
  if (!local_ && in != whole + parts.offset(rank())) {
    std::copy_n(static_cast<const std::byte*>(in), own, whole + parts.offset(rank()));
  }
  for (Posted& one : sent) await_sent(one);
  round.finish();
  return moved;
}

std::int64_t HierarchicalTransport::broadcast(const Call& call, void* data) {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  if (call.elements * item <= kInlineBytes) return GlooTransport::broadcast(call, data);
  Round round(*this, call);
  round.say_all();
  round.meet();
  const std::vector<std::int64_t> counts = slice_counts(call);
  const Parts slices = parts_of(counts, call.dtype);
  std::byte* const slice = static_cast<std::byte*>(data) + slices.offset(place_);
  const std::int64_t own = slices.bytes(place_);
  const int root_host = tree_.host(call.peer);
  std::int64_t moved = 0;
  if (host_ == root_host && local_) {
    Call local = local_call(call, call.elements);
    local.peer = tree_.place(call.peer);
    moved += locally([&] { return local_->broadcast(local, data); });
  }
  if (place_ < slices_ && own > 0) {
    const std::vector<int> owners = slice_owners();
    if (host_ == root_host) {
      std::vector<Posted> sent;
      for (const int r : owners) {
        if (r != rank()) sent.push_back(post_send(r, kDataSlot, slice, own));
      }
      for (Posted& one : sent) await_sent(one);
      moved += own * static_cast<std::int64_t>(sent.size());
    } else {
      Posted arriving =
          post_recv(owners[static_cast<std::size_t>(root_host)], kDataSlot, slice, own);
      await_received(arriving);
    }
  }
  if (host_ != root_host) {
    gather_locally(call, static_cast<std::byte*>(data), slice, counts);
    moved += own;
  }
  round.finish();
  return moved;
}

SymmetricMemory HierarchicalTransport::allocate(const Call& call, std::size_t bytes,
                                                const std::string& refusal) {
  {
    Round round(*this, call);
    agree_to_allocate(round, bytes, refusal);
  }
  if (!local_) return GlooTransport::allocate(call, bytes, refusal);
  SymmetricMemory memory;
  std::string trouble;
  try {
    const Call local = local_call(call, call.elements);
    memory = locally([&] { return local_->allocate(local, bytes, refusal); });
  } catch (const OutOfMemory& error) {
    trouble = error.what();
  }
  Round round(*this, call);
  agree_to_allocate(round, bytes, trouble);
  return memory;
}

std::unique_ptr<Transport> HierarchicalTransport::split(const Call& call,
                                                        const std::vector<int>& members,
                                                        const std::string& name) {
  std::vector<int> places;  // of the members on this host
  for (const int r : members) {
    if (tree_.host(r) == host_) places.push_back(tree_.place(r));
  }
  Call local = local_call(call, call.elements);
  const bool one_host = places.size() == members.size();
  if (one_host) return locally([&] { return local_->split(local, places, name); });
  auto child = split_member(call, members, name);
  SumTree tree(hosts_of(members));
  if (tree.hosts().size() == members.size()) {
    return std::make_unique<GlooTransport>(device_, std::move(child), std::move(tree));
  }
  std::unique_ptr<Transport> host_group;
  if (places.size() > 1) {
    host_group = locally([&] { return local_->split(local, places, name + "/host"); });
  }
  return std::make_unique<HierarchicalTransport>(device_, std::move(child), std::move(tree),
                                                 std::move(host_group));
}

}  // namespace cohort::comm::gloo
