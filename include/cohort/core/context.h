#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <typeindex>
#include <vector>

#include "cohort/core/device.h"
#include "cohort/core/memory.h"
#include "cohort/core/random.h"
#include "cohort/core/scheduler.h"
#include "cohort/core/stream.h"

namespace cohort {

struct GraphTask;  // of the autograd engine

// How a rank's streams run.
struct RuntimeOptions {
  // Set: all streams, the compute stream too, are queued and interleaved by a SeededScheduler with
  // this seed. Unset (0): the compute stream is inline and the others are threads.
  std::uint64_t schedule_seed = 0;
  // Non-zero: worker streams sleep random times before tasks (WorkerStreamOptions::delay_seed).
  std::uint64_t delay_seed = 0;
  // False: freed memory goes straight back to the system, so that sanitizers see a use after free.
  // With a schedule_seed it is cached all the same: queued work still uses what its host has freed.
  // COHORT_ALLOCATOR_CACHE=0 in the environment is false for all runtimes.
  bool cache_memory = true;
  // Bytes that may be live on the CPU; 0 for no limit.
  std::int64_t memory_limit = 0;
  // The rank's number in its world: random numbers that must differ between ranks use it.
  int rank = 0;
};

// Somebody who must hear when the rank fails: a process group, which tells the peers.
class FailureListener {
 public:
  virtual ~FailureListener() = default;
  virtual void rank_failed(const std::string& reason) noexcept = 0;
};

// What one rank owns: its allocators, its streams, its scheduler. Ranks that are threads of one
// process have one each; a program that never asks has the process's. Thread-safe.
class Runtime : public std::enable_shared_from_this<Runtime> {
 public:
  static std::shared_ptr<Runtime> make(const RuntimeOptions& options = {});

  int rank() const { return rank_.load(std::memory_order_relaxed); }
  // For a rank that learns its number after the runtime was made. Contexts made from now on draw
  // that rank's random numbers; reseed_for_rank() brings an existing one up to date.
  void set_rank(int rank) { rank_.store(rank, std::memory_order_relaxed); }
  const RuntimeOptions& options() const { return options_; }

  // The allocator of `device`. NotSupported when this build or machine has no device of that type,
  // saying why; InvalidArgument for an index beyond them.
  const std::shared_ptr<Allocator>& allocator(Device device);
  // The stream that operations use unless told otherwise.
  const Stream& compute_stream(Device device);
  // A further stream of `device`: a worker thread, the scheduler's, or a CUDA stream.
  Stream make_stream(Device device, std::string name);
  // The one queue through which the rank starts the collectives of all its groups on `device`, so
  // that two groups never start theirs in different orders.
  const Stream& collective_stream(Device device = Device::cpu());
  // An inline CPU stream for operations inside a queued task.
  const Stream& task_stream() const { return task_stream_; }
  // The scheduler, or null where streams are threads.
  SeededScheduler* scheduler() { return scheduler_.get(); }

  // `listener` hears of announce_failure() for as long as it lives.
  void add_failure_listener(const std::weak_ptr<FailureListener>& listener);
  // For a listener whose owner is being destroyed by an exception: lives until that exception has
  // been announced. False when nobody will announce it (no FailureScope is open).
  bool keep_until_failure(std::shared_ptr<FailureListener> listener);
  // Tells all listeners why the rank fails.
  void announce_failure(const std::string& reason) noexcept;

  // The rank's one T, which a layer above keeps here: made by `make` when it is first asked for.
  // `make` must not call this runtime.
  template <typename T, typename Make>
  std::shared_ptr<T> shared(Make make) {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<void>& kept = shared_[typeid(T)];
    if (!kept) kept = std::shared_ptr<T>(make());
    return std::static_pointer_cast<T>(kept);
  }

 private:
  friend class FailureScope;
  explicit Runtime(const RuntimeOptions& options);

  struct DeviceState {
    std::shared_ptr<Allocator> allocator;
    Stream compute;
  };
  DeviceState& state(Device device);

  RuntimeOptions options_;
  std::atomic<int> rank_;
  std::unique_ptr<SeededScheduler> scheduler_;
  Stream task_stream_;
  DeviceState cpu_;   // made at once; immutable
  DeviceState meta_;  // made at once; immutable
  std::mutex mutex_;  // guards what follows
  std::map<std::type_index, std::shared_ptr<void>> shared_;
  std::map<Device, DeviceState> accelerators_;
  std::map<Device, Stream> collective_;
  int failure_scopes_ = 0;
  std::vector<std::weak_ptr<FailureListener>> listeners_;
  std::vector<std::shared_ptr<FailureListener>> kept_listeners_;
};

// The part of a rank's program whose exceptions will be announced by Runtime::announce_failure().
class FailureScope {
 public:
  explicit FailureScope(std::shared_ptr<Runtime> runtime);
  ~FailureScope();
  FailureScope(const FailureScope&) = delete;
  FailureScope& operator=(const FailureScope&) = delete;

 private:
  std::shared_ptr<Runtime> runtime_;
};

// What is ambient in a thread: which rank's runtime, whether a graph is recorded, where work and
// memory go. One per thread, behind one thread-local pointer; belongs to that thread.
class Context {
 public:
  // The calling thread's context. A thread that never entered a ContextScope has one of its own
  // over the process's runtime.
  static Context& current();

  explicit Context(std::shared_ptr<Runtime> runtime);

  const std::shared_ptr<Runtime>& runtime() const { return runtime_; }
  // The stream operations on `device` use: the override of a StreamScope, else the compute stream.
  const Stream& stream(Device device);

  // A copy for a task of this context on another stream: its CPU operations run inline there.
  Context inside_task() const;

  bool grad_enabled = true;
  GraphTask* graph_task = nullptr;  // the backward that runs in this thread, if any
  std::uint64_t next_node = 1;      // number of the next operation recorded in a graph
  // Above 0: tensors stand in for others under the same handles (TensorImpl::swap_view), so what an
  // operation saves for backward is the view that it saw, not the handle.
  int stand_ins = 0;
  MemoryCategory memory_category = MemoryCategory::activations;
  // Numbers that are equal on all ranks: initialisation.
  Generator init_generator;
  // Numbers that differ by rank: dropout.
  Generator generator;

 private:
  friend class StreamScope;
  std::shared_ptr<Runtime> runtime_;
  Stream cpu_stream_;  // the CPU's current one: looked up for every operation
  Stream override_;    // of another device, or null
};

// Sets both generators of the current context: `seed` for initialisation, and (`seed`, rank) for
// what must differ by rank.
void manual_seed(std::uint64_t seed);

// Moves the current context's `generator` to the numbers of its runtime's rank.
void reseed_for_rank();

// Makes `context` the calling thread's current one until the scope ends.
class ContextScope {
 public:
  explicit ContextScope(Context& context);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  Context* previous_;
};

// Sends operations of `stream`'s device to it until the scope ends.
class StreamScope {
 public:
  explicit StreamScope(const Stream& stream);
  ~StreamScope();
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Context& context_;
  Stream previous_cpu_;
  Stream previous_override_;
};

// Counts memory allocated in the scope under `category`.
class MemoryCategoryScope {
 public:
  explicit MemoryCategoryScope(MemoryCategory category)
      : context_(Context::current()), previous_(context_.memory_category) {
    context_.memory_category = category;
  }
  ~MemoryCategoryScope() { context_.memory_category = previous_; }
  MemoryCategoryScope(const MemoryCategoryScope&) = delete;
  MemoryCategoryScope& operator=(const MemoryCategoryScope&) = delete;

 private:
  Context& context_;
  MemoryCategory previous_;
};

// The counters of the current rank's memory on `device`.
MemoryStats memory_stats(Device device = Device::cpu());

}  // namespace cohort
