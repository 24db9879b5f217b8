#include "cohort/comm/local_world.h"

#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "comm/flight_recorder.h"
#include "comm/shm/shm_transport.h"
#include "comm/shm/thread_link.h"
#include "comm/thread_ranks.h"
#include "comm/transport.h"

namespace cohort::comm {
namespace {

// A rank's own seed, or zero where none was given.
std::uint64_t mix(std::uint64_t seed, int rank) {
  if (seed == 0) return 0;
  PhiloxState state{seed, static_cast<std::uint64_t>(rank), 0};
  return state.bits(0) + 1u;
}

// The first error by time that is no mere echo of another rank's, or else the first.
class FirstError {
 public:
  void record(std::exception_ptr error, bool echo) {
    const std::lock_guard lock(mutex_);
    if (!error_ || (echo_ && !echo)) {
      error_ = std::move(error);
      echo_ = echo;
    }
  }
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::mutex mutex_;
  std::exception_ptr error_;
  bool echo_ = false;
};

using RankFunction = std::function<void(const std::shared_ptr<ProcessGroup>&)>;

void run_and_drain(const std::shared_ptr<Runtime>& runtime,
                   const std::shared_ptr<ProcessGroup>& group, const RankFunction& fn) {
  fn(group);
  runtime->compute_stream(Device::cpu()).synchronize();
  if (group->size() > 1) runtime->collective_stream().synchronize();
}

using MakeTransport = std::function<std::unique_ptr<Transport>(int rank)>;

void run_rank(const MakeTransport& make_transport, int rank, const LocalWorldOptions& options,
              const RankFunction& fn, FirstError& first) {
  RuntimeOptions own = options.runtime;
  own.rank = rank;
  own.schedule_seed = mix(own.schedule_seed, rank);
  own.delay_seed = mix(own.delay_seed, rank);
  const auto runtime = Runtime::make(own);
  if (options.flight_recorder) {
    runtime->shared<FlightRecorder>(
        [&] { return std::make_shared<FlightRecorder>(*options.flight_recorder); });
  }
  Context context(runtime);
  const ContextScope scope(context);
  const FailureScope announces(runtime);
  try {
    const auto group = make_process_group(make_transport(rank), "world", options.timeout);
    // The group must be told before its handle goes.
    try {
      run_and_drain(runtime, group, fn);
    } catch (const PeerError& error) {
      first.record(std::current_exception(), /*echo=*/true);
      runtime->announce_failure(error.what());
    } catch (const RemoteError& error) {
      first.record(std::current_exception(), /*echo=*/true);
      runtime->announce_failure(error.what());
    } catch (const std::exception& error) {
      first.record(std::current_exception(), /*echo=*/false);
      runtime->announce_failure(error.what());
    }
  } catch (...) {
    first.record(std::current_exception(), /*echo=*/false);
  }
}

}  // namespace

void run_thread_ranks(int size, const LocalWorldOptions& options,
                      const MakeTransport& make_transport, const RankFunction& fn) {
  FirstError first;
  std::vector<std::thread> threads;
  threads.reserve(static_cast<std::size_t>(size));
  try {
    for (int rank = 0; rank < size; ++rank) {
      threads.emplace_back([&, rank] { run_rank(make_transport, rank, options, fn, first); });
    }
  } catch (const std::exception&) {
    // The system has no more threads. Ranks that run give up when the missing do not come.
    first.record(std::current_exception(), /*echo=*/false);
  }
  for (std::thread& thread : threads) thread.join();
  first.rethrow();
}

LocalWorld::LocalWorld(int size, LocalWorldOptions options) : size_(size), options_(options) {
  check(size >= 1, "[local_world] a world has at least one rank, got ", size);
}

void LocalWorld::run(const RankFunction& fn) const {
  const auto hub = shm::make_hub();
  run_thread_ranks(
      size_, options_,
      [&](int rank) {
        return size_ == 1 ? make_self_transport()
                          : shm::make_shm_transport(shm::make_thread_link(hub, rank, size_), rank,
                                                    size_, "world", options_.timeout);
      },
      fn);
}

}  // namespace cohort::comm
