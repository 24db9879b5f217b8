#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/deadline.h"
#include "cohort/core/dtype.h"
#include "cohort/core/stream.h"

namespace cohort::comm {

// One collective as a transport sees it, besides its addresses. Elements are of `dtype`.
struct Call {
  Operation operation = Operation::barrier;
  ReduceOp reduce = ReduceOp::sum;
  DType dtype = DType::u8;
  std::int64_t elements = 0;  // of the largest tensor, or of one message
  int peer = -1;              // root, destination or source
  double scale = 1;
  Milliseconds timeout{0};
  std::string owner = {};
  bool check_signature = true;  // the ranks compare their calls before they move anything
  Stream stream = {};           // where device transports enqueue
};

// "all_reduce(sum) of 12 f32 (bucket 3)"
std::string describe(const Call& call);

// This rank's part of a symmetric allocation. `owner` returns it to the pool when it goes.
struct SymmetricMemory {
  void* data = nullptr;
  // Where the ranks share memory: the start of rank 0's part, behind which the others' lie one by
  // one without gaps, whole pages each. Null elsewhere.
  void* first = nullptr;
  std::shared_ptr<void> owner;
};

struct WorkState;

// What a transport of a device has besides its collectives, which only enqueue.
class DeviceQueue {
 public:
  virtual ~DeviceQueue() = default;
  // Marks the end of the collective that was just enqueued on call.stream. The event is ready when
  // the collective is over or has been given up; then, and before, `state.error` says why. It
  // watches over the deadline, and owns `held` until the end.
  virtual Event finish(const Call& call, std::shared_ptr<WorkState> state,
                       std::shared_ptr<void> held) = 0;
};

// How the ranks of one group move bytes. Arguments have been checked.
//
// Collectives run on the rank's queue, one at a time. On a CPU they block until done and throw what
// went wrong, after which the group has failed on all ranks. On a device (device_queue() is not
// null) they are called in the host thread, enqueue on call.stream and return; NotSupported from
// them means that nothing was enqueued and harms nothing. Those that move data return the bytes
// this rank wrote.
// abort(), leave() and failure() may come from any thread.
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // Where the tensors must be.
  virtual Device device() const = 0;
  virtual DeviceQueue* device_queue() { return nullptr; }
  // Largest send that does not wait for its recv.
  virtual std::int64_t eager_send_bytes() const = 0;

  virtual std::int64_t all_reduce(const Call& call, void* data) = 0;
  // counts[r] elements are part r; the parts lie one behind the other in `in`.
  virtual std::int64_t reduce_scatter(const Call& call, void* out, const void* in,
                                      std::span<const std::int64_t> counts) = 0;
  virtual std::int64_t all_gather(const Call& call, void* out, const void* in,
                                  std::span<const std::int64_t> counts) = 0;
  virtual std::int64_t broadcast(const Call& call, void* data) = 0;
  virtual std::int64_t all_to_all(const Call& call, void* out,
                                  std::span<const std::int64_t> out_counts, const void* in,
                                  std::span<const std::int64_t> in_counts) = 0;
  virtual std::int64_t send(const Call& call, const void* data) = 0;
  virtual std::int64_t recv(const Call& call, void* data) = 0;
  virtual void barrier(const Call& call) = 0;

  // Collective. `refusal` is this rank's own reason to refuse, or empty. OutOfMemory on all ranks
  // when one refuses or has no room; the group stays usable.
  virtual SymmetricMemory allocate(const Call& call, std::size_t bytes,
                                   const std::string& refusal) = 0;
  // Whether `first` of such an allocation is set.
  virtual bool shares_memory() const { return false; }
  // Collective among `members` (ranks of this group, more than one, this one included), which
  // become ranks 0, 1, … of the new group.
  virtual std::unique_ptr<Transport> split(const Call& call, const std::vector<int>& members,
                                           const std::string& name) = 0;

  // What the collective will return, of equal parts; nullopt where it is not known beforehand.
  // `symmetric` and `in_place` as for ProcessGroup::expected_bytes(). Thread-safe.
  virtual std::optional<std::int64_t> expected_bytes(const Call& call, bool symmetric,
                                                     bool in_place) const {
    static_cast<void>(call), static_cast<void>(symmetric), static_cast<void>(in_place);
    return std::nullopt;
  }

  // Ends the group on all ranks, unless it has ended: a rank failed with `reason`.
  virtual void abort(const std::string& reason) noexcept = 0;
  // The same while an exception unwinds whose text will follow with abort() in a moment.
  virtual void abort_text_follows() noexcept = 0;
  // Says that this rank calls nothing any more.
  virtual void leave() noexcept = 0;
  // The error that ended the group, worded for `operation`; null while it runs.
  virtual std::exception_ptr failure(Operation operation) const = 0;
};

// Wraps a transport for the current context's runtime. `world_ranks` says which ranks of the world
// the group's are, for the flight recorder; empty for the first ones.
std::shared_ptr<ProcessGroup> make_process_group(std::unique_ptr<Transport> transport,
                                                 std::string name, Milliseconds timeout,
                                                 std::vector<int> world_ranks = {});

// The transport of a group of one: copies, on the compute stream.
std::unique_ptr<Transport> make_self_transport();

}  // namespace cohort::comm
