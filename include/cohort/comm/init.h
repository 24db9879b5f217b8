#pragma once

#include <functional>
#include <memory>
#include <string>

#include "cohort/comm/launch_env.h"
#include "cohort/comm/process_group.h"

namespace cohort::comm {

struct InitOptions {
  // Of the group's collectives and of finding each other.
  Milliseconds timeout = kDefaultGroupTimeout;
  // "auto": shared memory when all ranks share this host; when they span hosts, both shared memory
  // and Gloo ("hierarchical"), or Gloo alone where no host has two ranks. "shm" to insist on shared
  // memory, "gloo" to send everything over TCP, or "nccl" for tensors on GPU number LOCAL_RANK.
  std::string backend = "auto";
  // Where the variables come from; the process's own environment when empty.
  LaunchEnv::Environment environment = {};
};

// The group of all ranks of the job that this process was started in, as told by the variables of
// torchrun, `cohort run`, mpirun or srun (comm/launch_env.h). Blocks until all ranks are there. A
// program started alone is a world of one, with no set-up at all.
// Also makes the rank known to the current context's runtime, so that dropout differs by rank.
// Between hosts a rank listens on the interface that leads to MASTER_ADDR, or on the one that
// COHORT_SOCKET_IFNAME names.
// TimeoutError, saying who is missing; NotSupported when "shm" is asked for and ranks do not share
// this host, or when this build or machine lacks the Gloo or NCCL that is needed;
// InvalidArgument for contradictory variables; StoreError when the store refuses.
std::shared_ptr<ProcessGroup> init_from_env(const InitOptions& options = {});

// What run_main() returns for an exception, one for each thing a launcher or script could treat
// differently. (64 and 70 as in sysexits.h; below 64 are the program's own.)
inline constexpr int kExitInvalidArgument = 64;  // InvalidArgument
inline constexpr int kExitError = 70;            // any other exception
inline constexpr int kExitPeer = 71;         // PeerError, RemoteError: another rank failed first
inline constexpr int kExitTimeout = 72;      // TimeoutError
inline constexpr int kExitMismatch = 73;     // MismatchError
inline constexpr int kExitOutOfMemory = 74;  // OutOfMemory

// Runs `fn` and returns its result. An exception that escapes it is printed on standard error with
// the rank, told to the peers of all groups of the current context's runtime, and turned into an
// exit code. While it runs, SIGUSR1 prints where this rank is and writes its flight record, unless
// the program handles that signal itself.
int run_main(int argc, char** argv, const std::function<int(int, char**)>& fn) noexcept;

}  // namespace cohort::comm
