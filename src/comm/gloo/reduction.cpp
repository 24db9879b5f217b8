// Reductions: each rank of an exchange owns a part, receives the others' values of it, combines
// them in the order of the sum tree, and for an all-reduce hands the result back. Large parts
// travel in pieces, so that one is summed while the next arrives.

#include <algorithm>
#include <cstring>

#include "comm/gloo/collectives.h"
#include "comm/gloo/slots.h"
#include "comm/reduce.h"

namespace cohort::comm::gloo {
namespace {

// A piece takes some 100 microseconds to cross a loopback or a fast network, beside which its two
// messages cost little; two of each rank fit into a cache of some MiB.
constexpr std::int64_t kPieceBytes = 512 << 10;
// Pieces of each peer that may have arrived before they are summed.
constexpr std::int64_t kDepth = 3;
// All peers' pieces together; many ranks get smaller ones.
constexpr std::int64_t kStagingBytes = 48 << 20;

std::int64_t pieces_of(std::int64_t bytes, std::int64_t piece) {
  return (bytes + piece - 1) / piece;
}

std::int64_t piece_length(std::int64_t bytes, std::int64_t p, std::int64_t piece) {
  return std::clamp(bytes - p * piece, std::int64_t{0}, piece);
}

// A multiple of every element's size and of a cache line, so that pieces cut no element.
std::int64_t piece_bytes(int peers) {
  const std::int64_t share = kStagingBytes / (kDepth * std::max(peers, 1));
  return std::clamp(share / 4096 * 4096, std::int64_t{16} << 10, kPieceBytes);
}

}  // namespace

std::int64_t GlooTransport::exchange(const Reduction& reduction) {
  const auto count = static_cast<int>(reduction.group.size());
  const int self = reduction.self;
  const Parts& parts = reduction.parts;
  const std::int64_t piece = piece_bytes(count - 1);
  // What arrives and what is handed back may differ in size, as f32 and bf16 do, but not in number.
  const std::int64_t back_piece = piece / parts.item * reduction.out_parts.item;
  const auto rank_at = [&](int g) { return reduction.group[static_cast<std::size_t>(g)]; };
  std::byte* const staged = staging(piece * kDepth * (count - 1));
  const auto slot = [&](int g, std::int64_t p) {
    return staged + ((g < self ? g : g - 1) * kDepth + p % kDepth) * piece;
  };
  const auto own_length = [&](std::int64_t p) { return piece_length(parts.bytes(self), p, piece); };
  const std::int64_t own_pieces = pieces_of(parts.bytes(self), piece);

  // First all places for what arrives, so that the peers can send at once.
  std::vector<Posted> arriving(static_cast<std::size_t>(count));
  std::vector<Posted> results(static_cast<std::size_t>(count));
  const auto expect = [&](int g, std::int64_t p) {
    Posted& posted = arriving[static_cast<std::size_t>(g)];
    member_->post(rank_at(g), [&] {
      posted.buffer->recv(rank_at(g), kDataSlot, static_cast<std::size_t>(slot(g, p) - slot(g, 0)),
                          static_cast<std::size_t>(own_length(p)));
    });
    ++posted.open;
  };
  for_each_peer(self, count, [&](int g) {
    arriving[static_cast<std::size_t>(g)] = {
        member_->mesh().buffer(slot(g, 0), static_cast<std::size_t>(piece * kDepth)), rank_at(g),
        0};
    for (std::int64_t p = 0; p < std::min(kDepth, own_pieces); ++p) expect(g, p);
    const std::int64_t bytes = reduction.out_parts.bytes(g);
    if (reduction.hand_back == nullptr || bytes == 0) return;
    Posted& posted = results[static_cast<std::size_t>(g)];
    posted = {member_->mesh().buffer(reduction.hand_back + reduction.out_parts.offset(g),
                                     static_cast<std::size_t>(bytes)),
              rank_at(g), 0};
    for (; posted.open < pieces_of(parts.bytes(g), piece); ++posted.open) {
      const std::int64_t at = posted.open * back_piece;
      member_->post(rank_at(g), [&] {
        posted.buffer->recv(rank_at(g), kResultSlot, static_cast<std::size_t>(at),
                            static_cast<std::size_t>(piece_length(bytes, posted.open, back_piece)));
      });
    }
  });

  // Then this rank's values for all others, piece by piece.
  std::vector<Posted> sent(static_cast<std::size_t>(count));
  std::int64_t moved = 0;
  for (std::int64_t p = 0; p < pieces_of(parts.largest(), piece); ++p) {
    for_each_peer(self, count, [&](int g) {
      const std::int64_t length = piece_length(parts.bytes(g), p, piece);
      if (length == 0) return;
      Posted& posted = sent[static_cast<std::size_t>(g)];
      if (!posted.buffer) {
        posted = {member_->mesh().buffer(const_cast<std::byte*>(reduction.in) + parts.offset(g),
                                         static_cast<std::size_t>(parts.bytes(g))),
                  rank_at(g), 0};
      }
      if (reduction.prepare) reduction.prepare(parts.offset(g) + p * piece, length);
      member_->post(rank_at(g), [&] {
        posted.buffer->send(rank_at(g), kDataSlot, static_cast<std::size_t>(p * piece),
                            static_cast<std::size_t>(length));
      });
      ++posted.open;
      moved += length;
    });
  }

  // Each piece of the own part, as it is complete.
  const std::int64_t own_back = reduction.out_parts.bytes(self);
  Posted handed{own_back == 0
                    ? nullptr
                    : member_->mesh().buffer(reduction.out, static_cast<std::size_t>(own_back)),
                -1, 0};
  std::vector<const void*> sources(static_cast<std::size_t>(count));
  for (std::int64_t p = 0; p < own_pieces; ++p) {
    sources[static_cast<std::size_t>(self)] = reduction.in + parts.offset(self) + p * piece;
    if (reduction.prepare) reduction.prepare(parts.offset(self) + p * piece, own_length(p));
    for_each_peer(self, count, [&](int g) {
      Posted& posted = arriving[static_cast<std::size_t>(g)];
      member_->await_recv(*posted.buffer, rank_at(g));
      --posted.open;
      sources[static_cast<std::size_t>(g)] = slot(g, p);
    });
    reduction.combine(reduction.out + p * back_piece, sources, own_length(p) / parts.item);
    for_each_peer(self, count, [&](int g) {
      if (p + kDepth < own_pieces) expect(g, p + kDepth);
      if (reduction.hand_back == nullptr) return;
      const std::int64_t length = piece_length(own_back, p, back_piece);
      member_->post(rank_at(g), [&] {
        handed.buffer->send(rank_at(g), kResultSlot, static_cast<std::size_t>(p * back_piece),
                            static_cast<std::size_t>(length));
      });
      handed.peer = rank_at(g);
      ++handed.open;
      moved += length;
    });
    if (reduction.arrived) {
      reduction.arrived(reduction.out_parts.offset(self) + p * back_piece,
                        piece_length(own_back, p, back_piece));
    }
  }
  for (std::int64_t p = 0; p < pieces_of(parts.largest(), piece); ++p) {
    for_each_peer(self, count, [&](int g) {
      Posted& posted = results[static_cast<std::size_t>(g)];
      if (posted.open == 0) return;
      member_->await_recv(*posted.buffer, posted.peer);
      --posted.open;
      if (reduction.arrived) {
        reduction.arrived(reduction.out_parts.offset(g) + p * back_piece,
                          piece_length(reduction.out_parts.bytes(g), p, back_piece));
      }
    });
  }
  for (Posted& posted : sent) await_sent(posted);
  await_sent(handed);
  return moved + own_back;
}

std::int64_t GlooTransport::small_all_reduce(const Call& call, void* data) {
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  Round round(*this, call);
  round.say_all(data, bytes);
  round.meet();
  std::vector<const void*> sources;
  for (int r = 0; r < size(); ++r) sources.push_back(r == rank() ? data : round.payload(r));
  tree_.reduce(data, sources, call.elements, call.dtype, call.reduce,
               finish_for(call.reduce, call.scale, size()));
  round.finish();
  return bytes * size();
}

std::int64_t GlooTransport::all_reduce(const Call& call, void* data) {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  if (call.elements * item <= kInlineBytes) return small_all_reduce(call, data);
  Round round(*this, call);
  round.say_all();
  round.meet();
  const Parts parts = parts_of(share_counts(call.elements, item, size(), size()), call.dtype);
  auto* const bytes = static_cast<std::byte*>(data);
  const Finish finish = finish_for(call.reduce, call.scale, size());
  const std::int64_t moved =
      exchange({member_->everybody(), rank(), parts, bytes, bytes + parts.offset(rank()), bytes,
                parts, [&](void* out, std::span<const void* const> sources, std::int64_t elements) {
                  tree_.reduce(out, sources, elements, call.dtype, call.reduce, finish);
                }});
  round.finish();
  return moved;
}

std::int64_t GlooTransport::reduce_scatter(const Call& call, void* out, const void* in,
                                           std::span<const std::int64_t> counts) {
  Round round(*this, call, hash_counts(counts));
  round.say_all();
  round.meet();
  const Parts parts = parts_of(counts, call.dtype);
  const Finish finish = finish_for(call.reduce, call.scale, size());
  const std::int64_t moved =
      exchange({member_->everybody(), rank(), parts, static_cast<const std::byte*>(in),
                static_cast<std::byte*>(out), nullptr, parts,
                [&](void* to, std::span<const void* const> sources, std::int64_t elements) {
                  tree_.reduce(to, sources, elements, call.dtype, call.reduce, finish);
                }});
  round.finish();
  return moved;
}

}  // namespace cohort::comm::gloo
