// The collectives' entry points, and their way through staging for tensors in ordinary memory: a
// rank copies a piece into its slot of the segment, all say so, and each takes what it needs from
// the slots of all.

#include <algorithm>
#include <cstring>

#include "cohort/core/error.h"
#include "comm/shm/shm_transport.h"

namespace cohort::comm::shm {
namespace {

std::int64_t pieces_of(std::int64_t bytes, std::int64_t piece) {
  return (bytes + piece - 1) / piece;
}

void copy_bytes(void* to, const void* from, std::int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
}

// The part of `bytes` that piece `p` of `piece` bytes covers.
std::int64_t piece_length(std::int64_t bytes, std::int64_t p, std::int64_t piece) {
  return std::clamp(bytes - p * piece, std::int64_t{0}, piece);
}

}  // namespace

std::byte* ShmTransport::slot(int rank, std::uint64_t piece) const {
  return member_->layout().staging(member_->base(), rank, static_cast<int>(piece % kStagingSlots));
}

std::int64_t ShmTransport::window_bytes() const {
  return static_cast<std::int64_t>(member_->layout().slot_bytes()) / size() / 64 * 64;
}

// Pieces that need one step each; the first has been put and agreed on. A slot is filled again
// three pieces later: by then every rank has been seen to come to the piece after it, and so has
// taken it.
template <typename Put, typename Take>
void ShmTransport::staged(std::int64_t pieces, Put put, Take take) {
  for (std::int64_t p = 0; p < pieces; ++p) {
    if (p > 0) {
      put(p);
      member_->publish();
      member_->await();
    }
    take(p);
    ++piece_;
  }
}

std::int64_t ShmTransport::all_reduce(const Call& call, void* data) {
  const Round round(*this, call);
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  if (bytes <= kSmallBytes) return small_all_reduce(call, data);
  own_record().out = pool_->locate(data, static_cast<std::size_t>(bytes));
  const auto first = std::min(bytes, static_cast<std::int64_t>(member_->layout().slot_bytes()));
  const Route route = enter([&] { copy_bytes(slot(rank()), data, first); });
  if (route == Route::out_direct) return direct_all_reduce(call);
  return staged_all_reduce(call, static_cast<std::byte*>(data));
}

std::int64_t ShmTransport::small_all_reduce(const Call& call, void* data) {
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  copy_bytes(slot(rank()), data, bytes);
  meet();
  std::vector<const void*> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(slot(r));
  reduce({&data, 1}, sources, call.elements, call.dtype, call.reduce,
         finish_for(call.reduce, call.scale, size()));
  ++piece_;
  return 2 * bytes;
}

// Two steps for each piece: all have put it, all have reduced their share of it. The next piece is
// put between a rank's own share and the wait for the others', so that the copies of one rank run
// beside the sums of another. Slot safety: putting piece p + 1 overwrites piece p - 2, which every
// rank had copied out before it published that it had put piece p, which this rank has awaited.
std::int64_t ShmTransport::staged_all_reduce(const Call& call, std::byte* data) {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const std::int64_t bytes = call.elements * item;
  const auto piece = static_cast<std::int64_t>(member_->layout().slot_bytes());
  const std::int64_t pieces = pieces_of(bytes, piece);
  const Finish finish = finish_for(call.reduce, call.scale, size());
  std::int64_t moved = bytes;
  std::vector<const void*> sources(static_cast<std::size_t>(size()));
  for (std::int64_t p = 0; p < pieces; ++p, ++piece_) {
    const std::int64_t count = piece_length(bytes, p, piece) / item;
    const Share share = share_of(count, item, rank(), size());
    for (int r = 0; r < size(); ++r) {
      sources[static_cast<std::size_t>(r)] = slot(r) + share.begin * item;
    }
    void* sum = slot(rank()) + share.begin * item;
    reduce({&sum, 1}, sources, share.end - share.begin, call.dtype, call.reduce, finish);
    member_->publish();
    const std::uint32_t reduced = member_->step();
    if (p + 1 < pieces) {
      copy_bytes(slot(rank(), piece_ + 1), data + (p + 1) * piece,
                 piece_length(bytes, p + 1, piece));
      member_->publish();
    }
    member_->await(reduced);
    for (int r = 0; r < size(); ++r) {
      const Share theirs = share_of(count, item, r, size());
      copy_bytes(data + p * piece + theirs.begin * item, slot(r) + theirs.begin * item,
                 (theirs.end - theirs.begin) * item);
    }
    moved += (share.end - share.begin) * item + count * item;
    if (p + 1 < pieces) member_->await();
  }
  return moved;
}

std::int64_t ShmTransport::reduce_scatter(const Call& call, void* out, const void* in,
                                          std::span<const std::int64_t> counts) {
  const Finish finish = finish_for(call.reduce, call.scale, size());
  return reduce_parts(call, out, in, counts, call.dtype,
                      [&](void* to, std::span<const void* const> from, std::int64_t count) {
                        reduce({&to, 1}, from, count, call.dtype, call.reduce, finish);
                      });
}

std::int64_t ShmTransport::reduce_scatter_partial(const Call& call, void* out, const void* in,
                                                  std::span<const std::int64_t> counts) {
  return reduce_parts(call, out, in, counts, partial_dtype(call.dtype),
                      [&](void* to, std::span<const void* const> from, std::int64_t count) {
                        reduce_to_partial(to, from, count, call.dtype, call.reduce);
                      });
}

std::int64_t ShmTransport::reduce_parts(const Call& call, void* out, const void* in,
                                        std::span<const std::int64_t> counts, DType out_dtype,
                                        const Combine& combine) {
  const Round round(*this, call, hash_counts(counts));
  const Parts parts = parts_of(counts, call.dtype);
  const auto out_item = static_cast<std::int64_t>(item_size(out_dtype));
  own_record().in = pool_->locate(in, static_cast<std::size_t>(call.elements * parts.item));
  const std::int64_t window = window_bytes();
  const auto put = [&](std::int64_t p) {
    for (int r = 0; r < size(); ++r) {
      copy_bytes(slot(rank()) + r * window,
                 static_cast<const std::byte*>(in) + parts.offset(r) + p * window,
                 piece_length(parts.bytes(r), p, window));
    }
  };
  const Route route = enter([&] { put(0); });
  if (route == Route::in_direct) {
    return direct_reduce_parts(out, parts, out_item, combine);
  }
  std::vector<const void*> sources(static_cast<std::size_t>(size()));
  staged(pieces_of(parts.largest(), window), put, [&](std::int64_t p) {
    const std::int64_t bytes = piece_length(parts.bytes(rank()), p, window);
    if (bytes == 0) return;
    for (int r = 0; r < size(); ++r) {
      sources[static_cast<std::size_t>(r)] = slot(r) + rank() * window;
    }
    combine(static_cast<std::byte*>(out) + p * window / parts.item * out_item, sources,
            bytes / parts.item);
  });
  return call.elements * parts.item + parts.bytes(rank()) / parts.item * out_item;
}

std::int64_t ShmTransport::all_gather(const Call& call, void* out, const void* in,
                                      std::span<const std::int64_t> counts) {
  const Round round(*this, call, hash_counts(counts));
  const Parts parts = parts_of(counts, call.dtype);
  const std::int64_t own_bytes = parts.bytes(rank());
  own_record().out = pool_->locate(
      out, static_cast<std::size_t>(parts.offset(size() - 1) + parts.bytes(size() - 1)));
  own_record().in = pool_->locate(in, static_cast<std::size_t>(own_bytes));
  const auto piece = static_cast<std::int64_t>(member_->layout().slot_bytes());
  std::int64_t moved = own_bytes;
  const auto put = [&](std::int64_t p) {
    copy_bytes(slot(rank()), static_cast<const std::byte*>(in) + p * piece,
               piece_length(own_bytes, p, piece));
  };
  const Route route = enter([&] { put(0); });
  if (route == Route::out_direct) return direct_gather_out(out, in, parts);
  if (route == Route::in_direct) return direct_gather_in(out, in, parts);
  staged(pieces_of(parts.largest(), piece), put, [&](std::int64_t p) {
    for (int r = 0; r < size(); ++r) {
      std::byte* target = static_cast<std::byte*>(out) + parts.offset(r);
      if (r == rank() && target == in) continue;  // in place
      const std::int64_t bytes = piece_length(parts.bytes(r), p, piece);
      copy_bytes(target + p * piece, slot(r), bytes);
      moved += bytes;
    }
  });
  return moved;
}

std::int64_t ShmTransport::broadcast(const Call& call, void* data) {
  const Round round(*this, call);
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  own_record().out = pool_->locate(data, static_cast<std::size_t>(bytes));
  const auto piece = static_cast<std::int64_t>(member_->layout().slot_bytes());
  const bool root = rank() == call.peer;
  const auto put = [&](std::int64_t p) {
    if (root) {
      copy_bytes(slot(rank()), static_cast<std::byte*>(data) + p * piece,
                 piece_length(bytes, p, piece));
    }
  };
  if (enter([&] { put(0); }) == Route::out_direct) return direct_broadcast(call, data);
  staged(pieces_of(bytes, piece), put, [&](std::int64_t p) {
    if (!root) {
      copy_bytes(static_cast<std::byte*>(data) + p * piece, slot(call.peer),
                 piece_length(bytes, p, piece));
    }
  });
  return bytes;
}

std::int64_t ShmTransport::all_to_all(const Call& call, void* out,
                                      std::span<const std::int64_t> out_counts, const void* in,
                                      std::span<const std::int64_t> in_counts) {
  const Round round(*this, call);
  const Parts from = parts_of(in_counts, call.dtype);
  const Parts to = parts_of(out_counts, call.dtype);
  const auto counts_of = [&](int r) {
    return member_->layout().counts(member_->base(), r, sequence_);
  };
  std::copy(in_counts.begin(), in_counts.end(), counts_of(rank()).begin());
  own_record().in = pool_->locate(in, static_cast<std::size_t>(call.elements * from.item));
  const std::int64_t window = window_bytes();
  const auto put = [&](std::int64_t p) {
    for (int r = 0; r < size(); ++r) {
      copy_bytes(slot(rank()) + r * window,
                 static_cast<const std::byte*>(in) + from.offset(r) + p * window,
                 piece_length(from.bytes(r), p, window));
    }
  };
  const Route route = enter([&] { put(0); });
  std::int64_t largest = 0;
  for (int r = 0; r < size(); ++r) {
    const std::int64_t sent = counts_of(r)[static_cast<std::size_t>(rank())];
    const std::int64_t expected = out_counts[static_cast<std::size_t>(r)];
    if (sent != expected) {
      member_->fail(FailureKind::mismatch, r,
                    str("rank ", r, " sends ", sent, " elements to rank ", rank(),
                        " in all_to_all, which expects ", expected));
    }
    for (const std::int64_t count : counts_of(r)) largest = std::max(largest, count * from.item);
  }
  if (route == Route::in_direct) return direct_all_to_all(out, to);
  std::int64_t moved = call.elements * from.item;
  staged(pieces_of(largest, window), put, [&](std::int64_t p) {
    for (int r = 0; r < size(); ++r) {
      const std::int64_t bytes = piece_length(to.bytes(r), p, window);
      copy_bytes(static_cast<std::byte*>(out) + to.offset(r) + p * window,
                 slot(r) + rank() * window, bytes);
      moved += bytes;
    }
  });
  return moved;
}

}  // namespace cohort::comm::shm
