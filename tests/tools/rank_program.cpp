// A rank for the tests of `cohort run`: joins its job through the store.
//   join MS     joins within MS milliseconds, prints "joined <rank> of <world>"
//   watch       joins, then waits for the death of rank 1 and ends with code 3
#include <signal.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>

#include "cohort/comm/launch_env.h"
#include "cohort/comm/rendezvous.h"

namespace {

int run(const std::string& what, cohort::Milliseconds timeout) {
  const auto env = cohort::comm::LaunchEnv::from_environment();
  const auto store = cohort::comm::open_store(env, timeout);
  store->set_on_disconnect("dead/" + std::to_string(env.rank), "gone");
  cohort::comm::join(*store, "world", env.rank, env.world_size, timeout);
  std::printf("joined %d of %d\n", env.rank, env.world_size);
  std::fflush(stdout);
  if (what == "watch") {
    if (env.rank == 1) ::raise(SIGKILL);
    store->get("dead/1");
    std::fprintf(stderr, "rank %d saw that rank 1 is dead\n", env.rank);
    return 3;
  }
  store->goodbye();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argv[1], cohort::Milliseconds(argc > 2 ? std::atoi(argv[2]) : 20'000));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 4;
  }
}
