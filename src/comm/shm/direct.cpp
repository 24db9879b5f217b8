// Collectives on tensors that lie at the same place of symmetric memory on all ranks.

#include <algorithm>
#include <cstring>

#include "comm/shm/shm_transport.h"
#include "comm/stream_copy.h"

namespace cohort::comm::shm {
namespace {

// A look at the group's state every so many bytes: some 100 microseconds of copying.
constexpr std::int64_t kCheckBytes = std::int64_t{1} << 20;

}  // namespace

std::byte* ShmTransport::peer_part(Place CallRecord::*place, int rank) const {
  return pool_->at(own_record().*place, rank);
}

void ShmTransport::copy_checked(void* to, const void* from, std::int64_t bytes) {
  auto* target = static_cast<std::byte*>(to);
  const auto* source = static_cast<const std::byte*>(from);
  for (std::int64_t at = 0; at < bytes; at += kCheckBytes) {
    member_->check_running();
    stream_copy(target + at, source + at, std::min(kCheckBytes, bytes - at));
  }
}

void ShmTransport::reduce_checked(std::span<void* const> to, std::span<const void* const> from,
                                  std::int64_t count, const Call& call) {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const Finish finish = finish_for(call.reduce, call.scale, size());
  std::vector<void*> targets(to.begin(), to.end());
  std::vector<const void*> sources(from.begin(), from.end());
  const std::int64_t step = kCheckBytes / item;
  for (std::int64_t at = 0; at < count; at += step) {
    member_->check_running();
    reduce(targets, sources, std::min(step, count - at), call.dtype, call.reduce, finish);
    for (void*& target : targets) target = static_cast<std::byte*>(target) + step * item;
    for (const void*& source : sources) {
      source = static_cast<const std::byte*>(source) + step * item;
    }
  }
}

std::int64_t ShmTransport::direct_all_reduce(const Call& call) {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const Share share = share_of(call.elements, item, rank(), size());
  std::vector<void*> buffers;
  for (int r = 0; r < size(); ++r) {
    buffers.push_back(peer_part(&CallRecord::out, r) + share.begin * item);
  }
  const std::vector<const void*> sources(buffers.begin(), buffers.end());
  reduce_checked(buffers, sources, share.end - share.begin, call);
  finish();
  return (share.end - share.begin) * item * size();
}

bool ShmTransport::on_all_tensors(const Call& call, void* data,
                                  const std::function<void(std::span<void* const>)>& body) {
  const Round round(*this, call);
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  own_record().out = pool_->locate(data, static_cast<std::size_t>(bytes));
  meet();
  if (common_route() != Route::out_direct) return false;
  std::vector<void*> tensors;
  for (int r = 0; r < size(); ++r) tensors.push_back(peer_part(&CallRecord::out, r));
  body(tensors);
  finish();
  return true;
}

std::int64_t ShmTransport::direct_reduce_parts(void* out, const Parts& parts, std::int64_t out_item,
                                               const Combine& combine) {
  std::vector<const void*> sources(static_cast<std::size_t>(size()));
  const std::int64_t count = parts.counts[static_cast<std::size_t>(rank())];
  const std::int64_t step = kCheckBytes / parts.item;
  for (std::int64_t at = 0; at < count; at += step) {
    member_->check_running();
    for (int r = 0; r < size(); ++r) {
      sources[static_cast<std::size_t>(r)] =
          peer_part(&CallRecord::in, r) + parts.offset(rank()) + at * parts.item;
    }
    combine(static_cast<std::byte*>(out) + at * out_item, sources, std::min(step, count - at));
  }
  finish();
  return count * out_item;
}

std::int64_t ShmTransport::direct_gather_out(void* out, const void* in, const Parts& parts) {
  const std::int64_t bytes = parts.bytes(rank());
  const std::int64_t offset = parts.offset(rank());
  std::int64_t moved = 0;
  // Starting behind oneself spreads the ranks over the targets.
  for (int i = 1; i <= size(); ++i) {
    const int r = (rank() + i) % size();
    std::byte* target =
        (r == rank() ? static_cast<std::byte*>(out) : peer_part(&CallRecord::out, r)) + offset;
    if (target == in) continue;
    copy_checked(target, in, bytes);
    moved += bytes;
  }
  finish();
  return moved;
}

std::int64_t ShmTransport::direct_gather_in(void* out, const void* in, const Parts& parts) {
  std::int64_t moved = 0;
  for (int i = 0; i < size(); ++i) {
    const int r = (rank() + i) % size();
    const void* source = r == rank() ? in : peer_part(&CallRecord::in, r);
    std::byte* target = static_cast<std::byte*>(out) + parts.offset(r);
    if (target == source) continue;
    copy_checked(target, source, parts.bytes(r));
    moved += parts.bytes(r);
  }
  finish();
  return moved;
}

std::int64_t ShmTransport::direct_broadcast(const Call& call, void* data) {
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  // Everybody reads at once; one root that writes to all would do it alone.
  if (rank() != call.peer) copy_checked(data, peer_part(&CallRecord::out, call.peer), bytes);
  finish();
  return rank() == call.peer ? 0 : bytes;
}

std::int64_t ShmTransport::direct_all_to_all(void* out, const Parts& out_parts) {
  std::int64_t moved = 0;
  for (int i = 0; i < size(); ++i) {
    const int r = (rank() + i) % size();
    const auto counts = member_->layout().counts(member_->base(), r, sequence_);
    std::int64_t before = 0;
    for (int to = 0; to < rank(); ++to) before += counts[static_cast<std::size_t>(to)];
    copy_checked(static_cast<std::byte*>(out) + out_parts.offset(r),
                 peer_part(&CallRecord::in, r) + before * out_parts.item, out_parts.bytes(r));
    moved += out_parts.bytes(r);
  }
  finish();
  return moved;
}

}  // namespace cohort::comm::shm
