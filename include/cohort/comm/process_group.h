#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "cohort/comm/work.h"
#include "cohort/core/deadline.h"
#include "cohort/core/tensor.h"

namespace cohort::comm {

// How the ranks' elements become one. Applied in rank order: in f32 for bf16, f16 and f32, in f64
// for f64, in their own type (wrapping) for integers; on bool, sum is "or" and product is "and".
// A NaN of any rank makes max and min NaN.
enum class ReduceOp : std::uint8_t { sum, mean, max, min, product };
std::string_view name(ReduceOp op);

// What a group does; the index of its counters.
enum class Operation : std::uint8_t {
  all_reduce,
  reduce_scatter,
  all_gather,
  broadcast,
  all_to_all,
  send,
  recv,
  barrier,
  allocate,
  split,
};
inline constexpr int kOperationCount = 10;
std::string_view name(Operation operation);
std::ostream& operator<<(std::ostream& out, ReduceOp op);
std::ostream& operator<<(std::ostream& out, Operation operation);

// Of a collective without an own deadline.
inline constexpr Milliseconds kDefaultGroupTimeout = std::chrono::minutes(5);

struct CollectiveOptions {
  // Multiplies the reduced value once, before the one rounding to the tensor's dtype. Floating
  // dtypes only. Under `mean` the factor is scale / size (without a scale: a division by size, so
  // that equal values have themselves as their mean).
  double scale = 1;
  // From the moment the collective's turn has come; the group's own when unset.
  std::optional<Milliseconds> timeout = {};
  // Who asks, for messages and for telling collectives of equal size apart: "bucket 3". The first
  // 47 bytes count.
  std::string owner = {};
};

// What one kind of operation has cost this rank so far.
struct OperationStats {
  std::int64_t count = 0;
  std::int64_t logical_bytes = 0;  // of the largest tensor of each call, as the caller sees it
  std::int64_t moved_bytes = 0;    // written by this rank to memory or a wire to get it done
  double seconds = 0;  // from start to finish, waits for peers included; not counted on CUDA
};

struct GroupStats {
  std::array<OperationStats, kOperationCount> operations{};

  const OperationStats& of(Operation operation) const {
    return operations[static_cast<std::size_t>(operation)];
  }
  OperationStats total() const;
};

// A set of ranks that communicate. All ranks call the same collectives of a group in the same
// order, with equal shapes and dtypes where the operation does not say otherwise.
//
// Every collective is asynchronous: it is enqueued on the rank's one queue, runs after what the
// current compute stream held at the call, and returns a Work. Tensors are read and written until
// the Work has finished, and kept alive until then; their memory must not be released
// (Storage::release_memory) meanwhile. They must be contiguous and on the group's device.
// docs/collectives.md says how each one works and what it costs.
//
// Errors: what is wrong with the arguments alone throws at the call (InvalidArgument, ShapeError,
// DTypeError, NotSupported) and harms nothing. Everything else is in the Work, and ends the group
// on all ranks: TimeoutError (the deadline passed; names who was missing), PeerError (a rank died,
// left or called abort), MismatchError (the ranks called different things). Later calls throw the
// first cause at once; the contents of tensors that took part are undefined, and symmetric tensors
// of the group must not be used for anything that matters: a rank that was stopped may still write
// there. OutOfMemory from allocate() is the exception: all ranks raise it, and the group lives on.
//
// Dropping the last handle waits for what was enqueued and leaves the group; peers that still wait
// for this rank get PeerError. Dropped while an exception unwinds, it aborts the group instead.
//
// Thread safety: collectives are called by the rank's host thread; abort(), stats() and the plain
// getters by any thread.
class ProcessGroup {
 public:
  class Impl;
  explicit ProcessGroup(std::shared_ptr<Impl> impl);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const;
  int size() const;
  const std::string& name() const;
  std::string_view backend() const;  // "self" (size one), "shm", "gloo", "hierarchical" or "nccl"
  Milliseconds timeout() const;

  // tensor = scale * (tensor of rank 0 op tensor of rank 1 op …), on all ranks.
  Work all_reduce(const Tensor& tensor, ReduceOp op = ReduceOp::sum,
                  const CollectiveOptions& options = {});
  // Reduces `in`, cut into size() parts, and leaves part rank() in `out`. `out` may be that part of
  // `in`. Without counts the parts are equal; with them, part r has counts[r] elements.
  Work reduce_scatter(const Tensor& out, const Tensor& in, ReduceOp op = ReduceOp::sum,
                      const CollectiveOptions& options = {});
  Work reduce_scatter(const Tensor& out, const Tensor& in, std::span<const std::int64_t> counts,
                      ReduceOp op = ReduceOp::sum, const CollectiveOptions& options = {});
  // out = in of rank 0, in of rank 1, …. `in` may be its own part of `out`. With counts, rank r
  // brings counts[r] elements.
  Work all_gather(const Tensor& out, const Tensor& in, const CollectiveOptions& options = {});
  Work all_gather(const Tensor& out, const Tensor& in, std::span<const std::int64_t> counts,
                  const CollectiveOptions& options = {});
  // tensor = tensor of `root`.
  Work broadcast(const Tensor& tensor, int root, const CollectiveOptions& options = {});
  // Part r of `in` goes to rank r; part r of `out` comes from rank r. With counts, the parts have
  // in_counts[r] and out_counts[r] elements; what r sends must be what the receiver expects.
  // `out` and `in` must not overlap.
  Work all_to_all(const Tensor& out, const Tensor& in, const CollectiveOptions& options = {});
  Work all_to_all(const Tensor& out, std::span<const std::int64_t> out_counts, const Tensor& in,
                  std::span<const std::int64_t> in_counts, const CollectiveOptions& options = {});
  // From rank to rank. The n-th send to a rank meets its n-th recv from here; both say the same
  // number of elements and dtype. A send of up to eager_send_bytes() does not wait for its recv;
  // a longer one does, and with it the rank's queue: two ranks that send to each other first and
  // receive then should use all_to_all.
  Work send(const Tensor& tensor, int destination, const CollectiveOptions& options = {});
  Work recv(const Tensor& tensor, int source, const CollectiveOptions& options = {});
  std::int64_t eager_send_bytes() const;
  // Done when all ranks have come to it.
  Work barrier(const CollectiveOptions& options = {});

  // Collective, blocks: the ranks with equal `color` form a new group, ordered by `key`, then by
  // rank. A negative color takes part without joining one, and gets null. The new group has this
  // one's timeout; without `name` it is called "<this one's name>/<color>".
  std::shared_ptr<ProcessGroup> split(int color, int key = 0, const std::string& name = {});

  // Collective, blocks: a tensor in symmetric memory, uninitialised, with the same shape and dtype
  // on all ranks. Collectives on it, or on the same part of it on all ranks, read and write the
  // peers' memory directly. Memory is pooled: it returns when the last handle goes. A symmetric
  // tensor must not be dropped while a stream other than the compute stream and the collectives'
  // still uses it. Counted under the context's memory category. OutOfMemory on all ranks when one
  // has no room.
  Tensor allocate(const Shape& shape, const TensorOptions& options = {});
  // Whether the ranks can look into one memory (they share a host, or are one).
  bool shares_memory() const;
  // Collective, blocks: one tensor for all ranks, uninitialised, which lies in memory once. What a
  // rank writes the others see once both have come to a later collective of the group; keeping
  // writers and readers apart is the caller's business. Each rank counts its share of the bytes
  // under the context's memory category. NotSupported unless shares_memory(); errors of allocate().
  Tensor allocate_shared(const Shape& shape, const TensorOptions& options = {});

  // For ranks that have uneven amounts of work (parallel/join.h). While it is on, each collective
  // of this rank is preceded by an announcement, one small all-reduce, which tells the ranks in
  // shadow() what to take part in. Every rank that is not in shadow() must have it on, and none of
  // them may send, receive, allocate, split, or exchange parts of unequal sizes. CPU groups only:
  // NotSupported otherwise.
  void announce_collectives(bool on);
  // Whether it is on, for what must not be done then. False in a group of one.
  bool announces_collectives() const;
  // Takes part in the collectives that the other ranks announce, with values that change nothing,
  // until all ranks are here, or `after`, told the owner of each one, returns false. Blocks, but
  // leaves the collectives themselves to the queue. Returns how many it took part in.
  std::int64_t shadow(const std::function<bool(const std::string& owner)>& after);

  // Ends the group on all ranks: they raise PeerError with `reason`. Any thread, any time.
  void abort(const std::string& reason) noexcept;
  // The error that ended the group, or null.
  std::exception_ptr failure() const;

  // The moved_bytes that a collective of `elements` of `dtype` (of its largest tensor, in equal
  // parts) will add to this rank's counters: all_reduce, reduce_scatter, all_gather, barrier.
  // `symmetric` says that its largest tensor lies in memory of allocate(), `in_place` that a
  // gather's input is its own part of the output. NotSupported for other operations, and where a
  // transport cannot know.
  std::int64_t expected_bytes(Operation operation, DType dtype, std::int64_t elements,
                              bool symmetric = false, bool in_place = false) const;

  GroupStats stats() const;
  void reset_stats();

 private:
  // An allocation of which this rank gets its own part, or all ranks the same whole.
  Tensor allocate_part(const Shape& shape, const TensorOptions& options, bool shared);

  std::shared_ptr<Impl> impl_;
  int unwinding_at_birth_;
};

}  // namespace cohort::comm
