#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cohort/core/deadline.h"
#include "tools/run_keeper.h"
#include "tools/run_output.h"

namespace cohort::tools {

// Watches over a started job: passes output and signals on, notices the first failure, and sees
// that everything ends within the grace time. One thread, one poll loop; nothing in it blocks.
class Supervisor {
 public:
  // `signals` is a signalfd of what is to be passed on.
  Supervisor(const RunOptions& options, Keeper& keeper, RankOutput& output, int signals);
  // Until the job has ended; the exit code.
  int run(std::uint16_t port);

 private:
  struct Rank {
    pid_t pid = 0;
    bool ended = false;
  };

  void step();
  int poll_timeout() const;
  void on_signal();
  void on_report(const KeeperReport& report);
  void on_exit(int rank, int status);
  void on_not_started(int rank, int error);
  void on_deadlines();
  void begin_grace(bool ask_first);
  void kill_all();
  bool over() const;
  int exit_code() const;
  std::string name(int rank) const;

  const RunOptions& options_;
  Keeper& keeper_;
  RankOutput& output_;
  const int signals_;

  std::vector<Rank> ranks_;
  int running_ = 0;
  std::optional<int> first_failure_;  // its exit code
  int requested_signal_ = 0;          // that the user ended the job with
  std::optional<Deadline> term_at_;
  std::optional<Deadline> kill_at_;
  std::optional<Deadline> give_up_at_;  // on a keeper that does not answer
  bool killing_ = false;
  bool killed_in_anger_ = false;  // the grace time was over
  bool finished_ = false;
};

}  // namespace cohort::tools
