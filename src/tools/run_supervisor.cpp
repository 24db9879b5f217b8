#include "tools/run_supervisor.h"

#include <signal.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "cohort/comm/init.h"
#include "cohort/core/error.h"
#include "tools/commands.h"

namespace cohort::tools {
namespace {

// The keeper itself gives up on a descendant after 5 s.
constexpr Milliseconds kKeeperTimeout{7'000};

std::string signal_name(int number) {
  const char* abbreviation = ::sigabbrev_np(number);
  return abbreviation ? str("SIG", abbreviation) : str("signal ", number);
}

bool ends_the_job(int number) {
  return number == SIGINT || number == SIGTERM || number == SIGHUP || number == SIGQUIT;
}

std::string seconds(Milliseconds time) {
  return str(static_cast<double>(time.count()) / 1e3, " s");
}

}  // namespace

Supervisor::Supervisor(const RunOptions& options, Keeper& keeper, RankOutput& output, int signals)
    : options_(options),
      keeper_(keeper),
      output_(output),
      signals_(signals),
      ranks_(static_cast<std::size_t>(options.ranks)),
      running_(options.ranks) {}

int Supervisor::run(std::uint16_t port) {
  keeper_.send({KeeperCommand::Kind::start, port});
  while (!over()) step();
  keeper_.close(Deadline::after(kKeeperTimeout));
  output_.drain();
  while (!output_.all_written()) step();
  return exit_code();
}

bool Supervisor::over() const {
  return finished_ || (give_up_at_ && give_up_at_->passed());
}

void Supervisor::step() {
  std::vector<pollfd> entries{{finished_ ? -1 : keeper_.fd(), POLLIN, 0}, {signals_, POLLIN, 0}};
  output_.prepare(entries);
  if (::poll(entries.data(), entries.size(), poll_timeout()) > 0) {
    output_.handle(entries, 2);
    if (entries[1].revents != 0) on_signal();
    if (entries[0].revents != 0) {
      bool gone = false;
      while (const auto report = keeper_.receive(gone)) on_report(*report);
      if (gone && !finished_) {
        output_.say("the keeper process was killed; the ranks end with it");
        finished_ = true;
        if (!first_failure_) first_failure_ = kExitFailure;
      }
    }
  }
  on_deadlines();
}

int Supervisor::poll_timeout() const {
  std::optional<Deadline> next = give_up_at_;
  for (const auto& deadline : {term_at_, kill_at_}) {
    if (deadline && !killing_) next = next ? next->sooner(*deadline) : *deadline;
  }
  if (!next || finished_) return -1;
  return static_cast<int>(std::min<std::int64_t>(next->left().count(), 1'000'000'000));
}

void Supervisor::on_signal() {
  signalfd_siginfo info{};
  while (::read(signals_, &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const auto number = static_cast<int>(info.ssi_signo);
    if (number == SIGINT && requested_signal_ == SIGINT) {
      // Asked twice: the user has no more patience, not even for output that nobody reads.
      kill_all();
      if (finished_) output_.discard();
      continue;
    }
    if (finished_) {
      if (ends_the_job(number)) output_.discard();
      continue;
    }
    // What asks a job to end goes to all its processes, as a terminal would send it; the two user
    // signals mean something to the rank alone, and would kill a helper that does not know them.
    keeper_.send({KeeperCommand::Kind::signal, number, ends_the_job(number)});
    if (ends_the_job(number)) {
      if (requested_signal_ == 0) {
        output_.say(str(signal_name(number), " was passed on; what still runs after ",
                        seconds(options_.grace()), " is killed"));
      }
      requested_signal_ = number;
      begin_grace(number == SIGINT);
    }
  }
}

// Survivors are left alone for three quarters of the grace time, so that they can raise their own
// errors, then asked to end, and killed at its end.
void Supervisor::begin_grace(bool ask_first) {
  if (kill_at_) return;
  if (ask_first) term_at_ = Deadline::after(options_.grace() * 3 / 4);
  kill_at_ = Deadline::after(options_.grace());
}

void Supervisor::on_deadlines() {
  if (killing_) return;
  if (output_.abandoned() && requested_signal_ == 0) {
    requested_signal_ = SIGPIPE;  // as any program whose reader has gone
    keeper_.send({KeeperCommand::Kind::signal, SIGTERM, true});
    begin_grace(false);
  }
  if (kill_at_ && kill_at_->passed()) {
    if (running_ > 0) output_.say(str("the grace time is over; ", running_, " rank(s) are killed"));
    killed_in_anger_ = running_ > 0;
    kill_all();
  } else if (term_at_ && term_at_->passed()) {
    keeper_.send({KeeperCommand::Kind::signal, SIGTERM, true});
    term_at_.reset();
  }
}

void Supervisor::kill_all() {
  if (killing_) return;
  killing_ = true;
  give_up_at_ = Deadline::after(kKeeperTimeout);
  keeper_.send({KeeperCommand::Kind::kill_all});
}

void Supervisor::on_report(const KeeperReport& report) {
  switch (report.kind) {
    case KeeperReport::Kind::ready:
      return;
    case KeeperReport::Kind::started:
      ranks_[static_cast<std::size_t>(report.rank)].pid = report.pid;
      return;
    case KeeperReport::Kind::not_started:
      return on_not_started(report.rank, report.value);
    case KeeperReport::Kind::exited:
      return on_exit(report.rank, report.value);
    case KeeperReport::Kind::finished:
      finished_ = true;
      return;
  }
}

std::string Supervisor::name(int rank) const {
  return str("rank ", options_.global_rank(rank), " (pid ",
             ranks_[static_cast<std::size_t>(rank)].pid, ")");
}

void Supervisor::on_not_started(int rank, int error) {
  output_.say(str("rank ", options_.global_rank(rank),
                  " could not be started: ", options_.program.front(), ": ", std::strerror(error)));
  if (!first_failure_) {
    first_failure_ = error == ENOENT ? kExitNotFound : kExitNotExecutable;
    if (error == EAGAIN || error == ENOMEM) first_failure_ = kExitFailure;
  }
  kill_all();
}

void Supervisor::on_exit(int rank, int status) {
  Rank& ended = ranks_[static_cast<std::size_t>(rank)];
  if (ended.ended) return;
  ended.ended = true;
  --running_;
  const bool crashed = WIFSIGNALED(status);
  const int code = crashed ? kExitSignal + WTERMSIG(status) : WEXITSTATUS(status);
  if (code != 0 && !first_failure_) {
    first_failure_ = code;
    const std::string what = crashed ? str("was ended by ", signal_name(WTERMSIG(status)),
                                           WCOREDUMP(status) ? " (core dumped)" : "")
                                     : str("failed with exit code ", code);
    std::string then;
    if (running_ > 0 && requested_signal_ == 0 && !killing_) {
      then = str("; the other ranks have ", seconds(options_.grace()), " to end");
    }
    output_.say(str(name(rank), " ", what, then));
    if (requested_signal_ == 0) begin_grace(true);
  } else if (code != 0 && !crashed && first_failure_ == comm::kExitPeer &&
             code != comm::kExitPeer) {
    // The one that heard of the failure was faster out than the one that failed.
    first_failure_ = code;
    output_.say(str(name(rank), " failed with exit code ", code, ", and was the cause"));
  }
  // The last rank is gone; helpers that it left behind are not a reason to stay.
  if (running_ == 0) kill_all();
}

int Supervisor::exit_code() const {
  const int code = first_failure_.value_or(killed_in_anger_ ? kExitFailure : 0);
  // Ranks that died of the user's signal, or of our answer to it, make it the user's signal.
  if (requested_signal_ != 0 && code > kExitSignal) return kExitSignal + requested_signal_;
  if (requested_signal_ == SIGPIPE) return kExitSignal + SIGPIPE;
  return code;
}

}  // namespace cohort::tools
