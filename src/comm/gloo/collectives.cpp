// Collectives that only copy. Parts that fit behind the header travel with it.

#include "comm/gloo/collectives.h"

#include <algorithm>
#include <cstring>

#include "comm/gloo/slots.h"

namespace cohort::comm::gloo {
namespace {

// From here on a broadcast among more than two ranks is worth its second step.
constexpr std::int64_t kScatterBytes = 64 << 10;

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

bool is_inline(std::int64_t bytes) {
  return bytes <= kInlineBytes;
}

}  // namespace

std::int64_t GlooTransport::all_gather(const Call& call, void* out, const void* in,
                                       std::span<const std::int64_t> counts) {
  const Parts parts = parts_of(counts, call.dtype);
  const std::int64_t own = parts.bytes(rank());
  auto* const whole = static_cast<std::byte*>(out);
  Round round(*this, call, hash_counts(counts));
  round.say_all(in, is_inline(own) ? own : 0);
  round.meet();
  std::vector<Posted> posted;
  for_each_peer(rank(), size(), [&](int r) {
    std::byte* to = whole + parts.offset(r);
    if (is_inline(parts.bytes(r))) {
      copy_bytes(to, round.payload(r), parts.bytes(r));
    } else {
      posted.push_back(post_recv(r, kDataSlot, to, parts.bytes(r)));
    }
  });
  std::vector<Posted> sent;
  if (!is_inline(own)) {
    for_each_peer(rank(), size(), [&](int r) { sent.push_back(post_send(r, kDataSlot, in, own)); });
  }
  copy_bytes(whole + parts.offset(rank()), in, own);
  for (Posted& one : posted) await_received(one);
  for (Posted& one : sent) await_sent(one);
  round.finish();
  return own * size();
}

std::int64_t GlooTransport::broadcast(const Call& call, void* data) {
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  const bool root = rank() == call.peer;
  Round round(*this, call);
  round.say_all(data, root && is_inline(bytes) ? bytes : 0);
  round.meet();
  std::int64_t moved = 0;
  if (is_inline(bytes)) {
    if (!root) copy_bytes(data, round.payload(call.peer), bytes);
    moved = root ? bytes * (size() - 1) : bytes;
  } else {
    std::vector<int> receivers;
    for (int r = 0; r < size(); ++r) {
      if (r != call.peer) receivers.push_back(r);
    }
    // Each receiver gets a share and hands it on; or, where that does not pay, the whole.
    const bool shares = size() > 2 && bytes >= kScatterBytes;
    moved = shares ? broadcast_shares(call.peer, receivers, static_cast<std::byte*>(data), bytes)
                   : broadcast_whole(call.peer, receivers, data, bytes);
  }
  round.finish();
  return moved;
}

std::int64_t GlooTransport::broadcast_whole(int root, const std::vector<int>& receivers, void* data,
                                            std::int64_t bytes) {
  if (rank() != root) {
    Posted posted = post_recv(root, kDataSlot, data, bytes);
    await_received(posted);
    return 0;
  }
  std::vector<Posted> sent;
  for (const int r : receivers) sent.push_back(post_send(r, kDataSlot, data, bytes));
  for (Posted& one : sent) await_sent(one);
  return bytes * static_cast<std::int64_t>(receivers.size());
}

std::int64_t GlooTransport::broadcast_shares(int root, const std::vector<int>& receivers,
                                             std::byte* data, std::int64_t bytes) {
  const auto count = static_cast<int>(receivers.size());
  const Parts parts = parts_of(share_counts(bytes, 1, count, count), DType::u8);
  const auto at = [&](int i) { return receivers[static_cast<std::size_t>(i)]; };
  std::vector<Posted> sent;
  std::int64_t moved = 0;
  const auto send = [&](int to, std::uint64_t slot, int share) {
    if (parts.bytes(share) == 0) return;
    sent.push_back(post_send(to, slot, data + parts.offset(share), parts.bytes(share)));
    moved += parts.bytes(share);
  };
  if (rank() == root) {
    for (int i = 0; i < count; ++i) send(at(i), kDataSlot, i);
  } else {
    const auto self =
        static_cast<int>(std::find(receivers.begin(), receivers.end(), rank()) - receivers.begin());
    std::vector<Posted> others;
    for_each_peer(self, count, [&](int i) {
      if (parts.bytes(i) == 0) return;
      others.push_back(post_recv(at(i), kResultSlot, data + parts.offset(i), parts.bytes(i)));
    });
    if (parts.bytes(self) > 0) {
      Posted own = post_recv(root, kDataSlot, data + parts.offset(self), parts.bytes(self));
      await_received(own);
    }
    for_each_peer(self, count, [&](int i) { send(at(i), kResultSlot, self); });
    for (Posted& one : others) await_received(one);
  }
  for (Posted& one : sent) await_sent(one);
  return moved;
}

std::int64_t GlooTransport::all_to_all(const Call& call, void* out,
                                       std::span<const std::int64_t> out_counts, const void* in,
                                       std::span<const std::int64_t> in_counts) {
  const Parts from = parts_of(in_counts, call.dtype);
  const Parts to = parts_of(out_counts, call.dtype);
  const auto* source = static_cast<const std::byte*>(in);
  auto* target = static_cast<std::byte*>(out);
  Round round(*this, call);
  for_each_peer(rank(), size(), [&](int r) {
    const std::int64_t bytes = from.bytes(r);
    round.say(r, source + from.offset(r), is_inline(bytes) ? bytes : 0,
              in_counts[static_cast<std::size_t>(r)]);
  });
  round.meet();
  for (int r = 0; r < size(); ++r) {
    const std::int64_t expected = out_counts[static_cast<std::size_t>(r)];
    const std::int64_t offered =
        r == rank() ? in_counts[static_cast<std::size_t>(r)] : round.header(r).for_you;
    if (offered == expected) continue;
    member_->fail(FailureKind::mismatch, r,
                  str("rank ", r, " sends ", offered, " elements to rank ", rank(),
                      " in all_to_all, which expects ", expected));
  }
  std::vector<Posted> posted;
  for_each_peer(rank(), size(), [&](int r) {
    if (is_inline(to.bytes(r))) {
      copy_bytes(target + to.offset(r), round.payload(r), to.bytes(r));
    } else {
      posted.push_back(post_recv(r, kDataSlot, target + to.offset(r), to.bytes(r)));
    }
  });
  std::vector<Posted> sent;
  for_each_peer(rank(), size(), [&](int r) {
    if (is_inline(from.bytes(r))) return;
    sent.push_back(post_send(r, kDataSlot, source + from.offset(r), from.bytes(r)));
  });
  copy_bytes(target + to.offset(rank()), source + from.offset(rank()), to.bytes(rank()));
  for (Posted& one : posted) await_received(one);
  for (Posted& one : sent) await_sent(one);
  round.finish();
  return call.elements * from.item;
}

}  // namespace cohort::comm::gloo
