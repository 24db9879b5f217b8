#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "comm/parts.h"
#include "comm/reduce.h"
#include "comm/shm/member.h"
#include "comm/shm/pool.h"
#include "comm/transport.h"

namespace cohort::comm::shm {

// Forms the first group of ranks that `link` connects; all call it at the same time.
std::unique_ptr<Transport> make_shm_transport(std::shared_ptr<Link> link, int rank, int size,
                                              const std::string& group, Milliseconds timeout);

// Up to here every rank of an all_reduce reduces everything itself, which spares a step: reading 16
// KiB of each peer takes about as long as one step of a few microseconds.
inline constexpr std::int64_t kSmallBytes = std::int64_t{16} << 10;

// Collectives of ranks that share a host's memory. docs/collectives.md describes the algorithms;
// their parts lie in direct.cpp (tensors in symmetric memory), staged.cpp (others), channel.cpp
// (point to point), traffic.cpp (what they will move) and shm_transport.cpp (agreement,
// allocation, splitting).
class ShmTransport final : public Transport {
 public:
  explicit ShmTransport(std::shared_ptr<Member> member);
  ~ShmTransport() override;

  std::string_view name() const override { return "shm"; }
  int rank() const override { return member_->rank(); }
  int size() const override { return member_->size(); }
  Device device() const override { return Device::cpu(); }
  std::int64_t eager_send_bytes() const override;

  std::int64_t all_reduce(const Call& call, void* data) override;
  std::int64_t reduce_scatter(const Call& call, void* out, const void* in,
                              std::span<const std::int64_t> counts) override;
  // The same without the finish and its rounding: `out` is of partial_dtype(call.dtype).
  std::int64_t reduce_scatter_partial(const Call& call, void* out, const void* in,
                                      std::span<const std::int64_t> counts);
  // Comes to a collective on `data` with all ranks. Where it lies at the same place of symmetric
  // memory on all, runs `body` on everybody's tensors, by rank, and returns true once all ranks
  // have; they must not write what another one still reads. Otherwise false: nothing was done.
  bool on_all_tensors(const Call& call, void* data,
                      const std::function<void(std::span<void* const>)>& body);
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
  bool shares_memory() const override { return true; }
  std::unique_ptr<Transport> split(const Call& call, const std::vector<int>& members,
                                   const std::string& name) override;
  std::optional<std::int64_t> expected_bytes(const Call& call, bool symmetric,
                                             bool in_place) const override;
  void abort(const std::string& reason) noexcept override { member_->abort(reason); }
  void abort_text_follows() noexcept override { member_->abort_text_follows(); }
  void leave() noexcept override;
  std::exception_ptr failure(Operation operation) const override {
    return member_->failure(operation);
  }

 private:
  // What makes one of all ranks' elements: destination, sources by rank, elements.
  using Combine = std::function<void(void*, std::span<const void* const>, std::int64_t)>;
  std::int64_t reduce_parts(const Call& call, void* out, const void* in,
                            std::span<const std::int64_t> counts, DType out_dtype,
                            const Combine& combine);

  // How a collective's bytes travel; all ranks see all places, and so choose alike.
  enum class Route { staged, out_direct, in_direct };

  // Agreement. A Round is one collective from its record to its end.
  class Round;
  CallRecord& record(int rank) const { return member_->slot(rank).calls[sequence_ % 2]; }
  CallRecord& own_record() const { return record(rank()); }
  void write_record(const Call& call, std::uint64_t counts_hash);
  void meet();
  [[noreturn]] void report_mismatch();
  template <typename Put>
  Route enter(Put put_first);
  Route common_route() const;
  // The end of a direct operation: nobody reads or writes my memory any more.
  void finish();
  // A new block of symmetric memory; OutOfMemory on all ranks when one has no room.
  std::uint32_t reserve_block(std::size_t bytes, std::size_t slice);

  // Direct.
  std::byte* peer_part(Place CallRecord::*place, int rank) const;
  std::int64_t direct_all_reduce(const Call& call);
  std::int64_t direct_reduce_parts(void* out, const Parts& parts, std::int64_t out_item,
                                   const Combine& combine);
  std::int64_t direct_gather_out(void* out, const void* in, const Parts& parts);
  std::int64_t direct_gather_in(void* out, const void* in, const Parts& parts);
  std::int64_t direct_broadcast(const Call& call, void* data);
  std::int64_t direct_all_to_all(void* out, const Parts& out_parts);
  void copy_checked(void* to, const void* from, std::int64_t bytes);
  void reduce_checked(std::span<void* const> to, std::span<const void* const> from,
                      std::int64_t count, const Call& call);

  // Staged.
  std::byte* slot(int rank) const { return slot(rank, piece_); }
  std::byte* slot(int rank, std::uint64_t piece) const;
  std::int64_t window_bytes() const;  // of each rank's part of a slot
  template <typename Put, typename Take>
  void staged(std::int64_t pieces, Put put, Take take);
  std::int64_t small_all_reduce(const Call& call, void* data);
  std::int64_t staged_all_reduce(const Call& call, std::byte* data);

  const std::shared_ptr<Member> member_;
  const std::shared_ptr<SymmetricPool> pool_;
  std::uint64_t sequence_ = 0;   // of the current collective
  bool check_signature_ = true;  // the same
  std::uint64_t piece_ = 0;      // counts staged pieces, alike on all ranks; chooses the slot
};

// One collective: from the record to the end, which comes also when it throws.
class ShmTransport::Round {
 public:
  Round(ShmTransport& transport, const Call& call, std::uint64_t counts_hash = 0);
  ~Round() { transport_.member_->end(); }
  Round(const Round&) = delete;
  Round& operator=(const Round&) = delete;

 private:
  ShmTransport& transport_;
};

// Comes to the collective, with the first piece of this rank's staging filled by `put_first` if the
// staged route is taken; returns when all have come and agree.
template <typename Put>
ShmTransport::Route ShmTransport::enter(Put put_first) {
  const bool placed = own_record().out.block != 0 || own_record().in.block != 0;
  if (!placed) put_first();
  meet();
  const Route route = common_route();
  if (route != Route::staged) return route;
  // Ranks whose tensor is symmetric learn only now that not all are: one more step lets them fill
  // their staging.
  bool any_placed = false;
  for (int r = 0; r < size(); ++r) {
    any_placed = any_placed || record(r).out.block != 0 || record(r).in.block != 0;
  }
  if (any_placed) {
    if (placed) put_first();
    member_->publish();
    member_->await();
  }
  return route;
}

}  // namespace cohort::comm::shm
