#include "cohort/comm/init.h"

#include <cstdio>
#include <string>
#include <utility>

#include "cohort/comm/rendezvous.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
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

}  // namespace

std::shared_ptr<ProcessGroup> init_from_env(const InitOptions& options) {
  check(options.backend == "auto" || options.backend == "shm", "[init] there is no backend '",
        options.backend, "'; choose auto or shm");
  const LaunchEnv env = options.environment ? LaunchEnv::from_environment(options.environment)
                                            : LaunchEnv::from_environment();
  Context::current().runtime()->set_rank(env.rank);
  reseed_for_rank();
  if (env.world_size == 1) {
    return make_process_group(make_self_transport(), "world", options.timeout);
  }
  const std::shared_ptr<Store> store = open_store(env, options.timeout);
  // A job that is restarted on one store starts again under fresh names.
  PrefixStore attempt(str("init/", env.restart_count), store);
  join(attempt, "world", env.rank, env.world_size, options.timeout);
  auto link = shm::connect_processes(attempt, env.rank, env.world_size, options.timeout);
  auto transport = shm::make_shm_transport(std::move(link), env.rank, env.world_size, "world",
                                           options.timeout);
  auto group = make_process_group(std::move(transport), "world", options.timeout);
  // The store may be rank 0's own and go with it: nobody needs it any more once all have met.
  group->barrier().synchronize();
  return group;
}

int run_main(int argc, char** argv, const std::function<int(int, char**)>& fn) noexcept {
  try {
    const std::shared_ptr<Runtime> runtime = Context::current().runtime();
    const FailureScope announces(runtime);
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
