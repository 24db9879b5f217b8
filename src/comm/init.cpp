#include "cohort/comm/init.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "cohort/comm/rendezvous.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "comm/dump_signal.h"
#include "comm/flight_recorder.h"
#include "comm/gloo/gloo_transport.h"
#include "comm/local_address.h"
#include "comm/nccl/nccl_transport.h"
#include "comm/shm/process_link.h"
#include "comm/shm/shm_transport.h"
#include "comm/transport.h"

namespace cohort::comm {
namespace {

struct ExitCode {
  int code;
  std::string text;
};

// Of the exception being handled.
ExitCode classify() {
  try {
    throw;
  } catch (const PeerError& error) {
    return {kExitPeer, error.what()};
  } catch (const RemoteError& error) {
    return {kExitPeer, error.what()};
  } catch (const TimeoutError& error) {
    return {kExitTimeout, error.what()};
  } catch (const MismatchError& error) {
    return {kExitMismatch, error.what()};
  } catch (const OutOfMemory& error) {
    return {kExitOutOfMemory, error.what()};
  } catch (const InvalidArgument& error) {
    return {kExitInvalidArgument, error.what()};
  } catch (const std::exception& error) {
    return {kExitError, error.what()};
  } catch (...) {
    return {kExitError, "an exception that is no std::exception"};
  }
}

// SIGUSR1: where is this rank?
void show_record(Runtime& runtime) noexcept {
  try {
    const std::shared_ptr<FlightRecorder> recorder = FlightRecorder::of(runtime);
    // In one piece: the ranks share a terminal.
    const std::string text = recorder->summary();
    std::fwrite(text.data(), 1, text.size(), stderr);
    recorder->write_trace("signal");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "[rank %d] no flight record: %s\n", runtime.rank(), error.what());
  }
}

// The store under a prefix of this start: a job that is restarted on one store starts again under
// fresh names. Returns when all ranks have joined.
std::shared_ptr<Store> join_world(const LaunchEnv& env, Milliseconds timeout) {
  auto attempt =
      std::make_shared<PrefixStore>(str("init/", env.restart_count), open_store(env, timeout));
  join(*attempt, "world", env.rank, env.world_size, timeout);
  return attempt;
}

std::shared_ptr<ProcessGroup> init_gpus(const LaunchEnv& env, Milliseconds timeout) {
  // A rank without a GPU should say so at once, not when the others have come.
  nccl::check_nccl_is_built();
  const Device device = Device::cuda(env.local_rank);
  Context::current().runtime()->compute_stream(device);
  auto transport = nccl::make_nccl_transport(join_world(env, timeout), device, env.rank,
                                             env.world_size, "world", timeout);
  auto group = make_process_group(std::move(transport), "world", timeout);
  group->barrier().synchronize(timeout);
  return group;
}

// Shared memory where one host has all ranks; Gloo between hosts.
std::unique_ptr<Transport> make_cpu_transport(Store& store, const LaunchEnv& env,
                                              const InitOptions& options) {
  const Deadline deadline = Deadline::after(options.timeout);
  if (options.backend == "shm") {
    return shm::make_shm_transport(
        shm::connect_processes(store, env.rank, env.world_size, deadline.left()), env.rank,
        env.world_size, "world", deadline.left());
  }
  shm::Hosts hosts = shm::find_hosts(store, env.rank, env.world_size, deadline.left());
  if (options.backend == "auto" && hosts.one()) {
    return shm::make_shm_transport(std::move(hosts.link), env.rank, env.world_size, "world",
                                   deadline.left());
  }
  const bool one_rank_each =
      std::set<int>(hosts.host_of.begin(), hosts.host_of.end()).size() == hosts.host_of.size();
  gloo::GlooOptions between{
      .address = local_address(env.master_addr, options.environment),
      .host_of = hosts.host_of,
      .link = std::move(hosts.link),
      .hierarchical = options.backend == "auto" && !one_rank_each,
  };
  const bool loopback = is_loopback(between.address);
  check<NotSupported>(hosts.one() || !loopback, "[init] rank ", env.rank, " would listen on ",
                      between.address, ", which other hosts cannot reach: MASTER_ADDR (",
                      env.master_addr,
                      ") must be an address that all hosts know, or COHORT_SOCKET_IFNAME must name "
                      "an interface");
  return gloo::make_gloo_transport(store, env.rank, env.world_size, "world", deadline.left(),
                                   between);
}

}  // namespace

std::shared_ptr<ProcessGroup> init_from_env(const InitOptions& options) {
  constexpr std::array kBackends = {"auto", "shm", "gloo", "nccl"};
  check(std::find(kBackends.begin(), kBackends.end(), options.backend) != kBackends.end(),
        "[init] there is no backend '", options.backend, "'; choose auto, shm, gloo or nccl");
  const LaunchEnv env = options.environment ? LaunchEnv::from_environment(options.environment)
                                            : LaunchEnv::from_environment();
  logging::debug(str("[init] rank ", env.rank, " of ", env.world_size));
  Context::current().runtime()->set_rank(env.rank);
  reseed_for_rank();
  if (options.backend == "nccl") return init_gpus(env, options.timeout);
  if (options.backend == "gloo") gloo::check_gloo_is_built();
  if (env.world_size == 1) {
    return make_process_group(make_self_transport(), "world", options.timeout);
  }
  const std::shared_ptr<Store> store = join_world(env, options.timeout);
  auto group =
      make_process_group(make_cpu_transport(*store, env, options), "world", options.timeout);
  // The store may be rank 0's own and go with it: nobody needs it any more once all have met.
  group->barrier().synchronize();
  return group;
}

int run_main(int argc, char** argv, const std::function<int(int, char**)>& fn) noexcept {
  try {
    const std::shared_ptr<Runtime> runtime = Context::current().runtime();
    const FailureScope announces(runtime);
    const DumpSignal on_user_signal([&runtime] { show_record(*runtime); });
    try {
      return fn(argc, argv);
    } catch (...) {
      const ExitCode exit = classify();
      runtime->announce_failure(exit.text);
      std::fprintf(stderr, "[rank %d] error: %s\n", runtime->rank(), exit.text.c_str());
      return exit.code;
    }
  } catch (...) {
    return kExitError;  // no memory to say more
  }
}

}  // namespace cohort::comm
