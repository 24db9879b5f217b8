#pragma once

#include <sched.h>
#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "comm/store_socket.h"
#include "tools/run_options.h"

namespace cohort::tools {

using comm::UniqueFd;

// The keeper is the parent of all ranks. It is forked before the launcher has threads, lives in a
// session of its own, and ends every descendant when it is told to or when the launcher is gone, in
// whatever way. Where that is permitted it is process 1 of a PID namespace: the kernel then kills
// whatever is left in it when the keeper ends. Elsewhere it is a subreaper, so that orphans of any
// depth become its children and are killed as such.
//
// Launcher and keeper exchange these messages, one per packet.
struct KeeperCommand {
  enum class Kind { start, signal, kill_all } kind;
  int value = 0;        // start: the store's port; signal: the signal
  bool groups = false;  // signal: the ranks' process groups, not the ranks alone
};

struct KeeperReport {
  enum class Kind {
    ready,        // value: 1 with a PID namespace
    started,      // sent by the rank itself, before the program is loaded
    not_started,  // value: errno of fork or exec
    exited,       // value: the status of waitpid
    finished,     // no descendant is left
  } kind;
  int rank = -1;  // local
  int value = 0;
  pid_t pid = 0;  // as the launcher sees it; filled in by receive()
};

// The files of one rank, all closed on exec.
struct RankFiles {
  UniqueFd out;
  UniqueFd err;  // empty: the same as out
};

// All that the keeper needs to know, fixed before it is forked.
struct KeeperPlan {
  RunOptions options;
  std::string program;  // the file
  std::string job_id;
  std::string secret;
  std::vector<RankFiles> files;  // one per rank
  std::vector<cpu_set_t> cpus;   // one per rank, or none
  sigset_t rank_signal_mask;
};

// The launcher's end.
class Keeper {
 public:
  // Forks the keeper, which takes over the files of `plan`. The calling process must have one
  // thread.
  explicit Keeper(KeeperPlan& plan);
  // The keeper ends everything when the connection closes; this waits for it.
  ~Keeper();
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  int fd() const { return control_.get(); }  // readable when there is a report
  // The next report, if there is one; `gone` is set when the keeper has ended.
  std::optional<KeeperReport> receive(bool& gone);
  void send(const KeeperCommand& command);
  // Waits for the end of the keeper, by SIGKILL once the deadline has passed, and then ends
  // whatever has come to the launcher because the keeper could not end it.
  void close(Deadline deadline);

 private:
  UniqueFd control_;
  pid_t pid_ = -1;
};

}  // namespace cohort::tools
