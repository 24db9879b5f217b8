#include "tools/run_keeper.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "cohort/core/error.h"
#include "tools/commands.h"
#include "tools/run_processes.h"

namespace cohort::tools {
namespace {

// A descendant may hang in the kernel (a dead network disk); the keeper does not wait for it for
// ever.
constexpr Milliseconds kKillTimeout{5'000};
// From closing its files to being a zombie, a process needs no more than its turn on a core.
constexpr Milliseconds kEndingTimeout{200};

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

// Runs in the keeper's process.
class KeeperProcess {
 public:
  KeeperProcess(KeeperPlan& plan, int control, bool isolated)
      : plan_(plan), control_(control), isolated_(isolated), ranks_(plan.files.size(), -1) {}

  void run() {
    ::setsid();  // the terminal's signals are for the launcher
    ::prctl(PR_SET_NAME, "cohort-keeper");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    // In the namespace the end of the keeper is the end of all, and that must not hang on the
    // keeper's being awake. Elsewhere the keeper has to outlive the launcher to clean up.
    if (isolated_) ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    signals_ = UniqueFd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK));
    report({KeeperReport::Kind::ready, -1, isolated_ ? 1 : 0});
    while (!done_) step();
  }

 private:
  void step() {
    std::array<pollfd, 2> entries{{{control_, POLLIN, 0}, {signals_.get(), POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), -1) < 0) return;
    if (entries[1].revents != 0) {
      signalfd_siginfo info{};
      while (::read(signals_.get(), &info, sizeof info) > 0) {
      }
      reap_now();
    }
    if (entries[0].revents != 0) obey();
  }

  void obey() {
    KeeperCommand command{};
    const ssize_t got = ::recv(control_, &command, sizeof command, 0);
    if (got < 0 && errno == EINTR) return;
    if (got != static_cast<ssize_t>(sizeof command)) return end_all();  // the launcher is gone
    switch (command.kind) {
      case KeeperCommand::Kind::start:
        return start(command.value);
      case KeeperCommand::Kind::signal:
        for (const pid_t pid : ranks_) {
          if (pid > 0) ::kill(command.groups ? -pid : pid, command.value);
        }
        return;
      case KeeperCommand::Kind::kill_all:
        return end_all();
    }
  }

  void start(int port) {
    const JobIdentity job{plan_.job_id, plan_.secret, static_cast<std::uint16_t>(port)};
    for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      std::vector<std::string> args = plan_.options.program;
      std::vector<std::string> environment = rank_environment(plan_.options, job, rank);
      const std::vector<char*> argv = pointers(args);
      const std::vector<char*> envp = pointers(environment);
      const pid_t keeper = ::getpid();
      const pid_t pid = ::fork();
      if (pid == 0) become_rank(rank, keeper, argv, envp);
      if (pid < 0) {
        report({KeeperReport::Kind::not_started, rank, errno});
        return;
      }
      ::setpgid(pid, pid);  // the rank does it as well: whoever comes first
      ranks_[static_cast<std::size_t>(rank)] = pid;
    }
    plan_.files.clear();  // a rank's output ends when the rank does
  }

  [[noreturn]] void become_rank(int rank, pid_t keeper, const std::vector<char*>& argv,
                                const std::vector<char*>& envp) {
    const auto index = static_cast<std::size_t>(rank);
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != keeper) ::_exit(kExitFailure);  // the keeper died before the line above
    if (rank != 0) {
      const int null = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
      ::dup2(null, STDIN_FILENO);
    }
    const RankFiles& files = plan_.files[index];
    ::dup2(files.out.get(), STDOUT_FILENO);
    ::dup2(files.err ? files.err.get() : files.out.get(), STDERR_FILENO);
    if (!plan_.cpus.empty()) ::sched_setaffinity(0, sizeof(cpu_set_t), &plan_.cpus[index]);
    report({KeeperReport::Kind::started, rank, 0});
    ::sigprocmask(SIG_SETMASK, &plan_.rank_signal_mask, nullptr);
    ::execvpe(plan_.program.c_str(), argv.data(), envp.data());
    const int error = errno;
    report({KeeperReport::Kind::not_started, rank, error});
    ::_exit(error == ENOENT ? kExitNotFound : kExitNotExecutable);
  }

  void reap_now() {
    std::vector<std::pair<pid_t, int>> ended;
    const auto collect = [&] {
      reap([&](pid_t pid, int status) { ended.emplace_back(pid, status); });
    };
    collect();
    // The kernel closes a dying rank's connections a moment before it can be reaped, and a peer
    // that noticed may be out first.
    const Deadline deadline = Deadline::after(kEndingTimeout);
    for (const pid_t pid : ranks_) {
      if (ended.empty() || pid <= 0 || !is_ending(pid)) continue;
      const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (process) comm::poll_for(process.get(), POLLIN, deadline);
    }
    collect();
    // Of those that are found together, one that crashed came before those that noticed it.
    std::stable_sort(ended.begin(), ended.end(), [](const auto& a, const auto& b) {
      return WIFSIGNALED(a.second) && !WIFSIGNALED(b.second);
    });
    for (const auto& [pid, status] : ended) report_end(pid, status);
  }

  void report_end(pid_t pid, int status) {
    const auto found = std::find(ranks_.begin(), ranks_.end(), pid);
    if (found == ranks_.end()) return;  // an orphan of a rank
    *found = -1;
    report({KeeperReport::Kind::exited, static_cast<int>(found - ranks_.begin()), status});
  }

  void end_all() {
    reap_now();  // what has ended by itself is not told as killed
    if (isolated_) ::kill(-1, SIGKILL);
    kill_descendants(Deadline::after(kKillTimeout),
                     [this](pid_t pid, int status) { report_end(pid, status); });
    report({KeeperReport::Kind::finished});
    done_ = true;
  }

  void report(const KeeperReport& message) const {
    while (::send(control_, &message, sizeof message, MSG_NOSIGNAL) < 0 && errno == EINTR) {
    }
  }

  KeeperPlan& plan_;
  const int control_;
  const bool isolated_;
  bool done_ = false;
  UniqueFd signals_;
  std::vector<pid_t> ranks_;  // -1: not running
};

// The child of a new PID namespace needs its own /proc; mounts go on reaching it from outside, and
// none of its own get out.
bool enter_mount_namespace() {
  return ::mount("none", "/", nullptr, MS_REC | MS_SLAVE, nullptr) == 0 &&
         ::mount("proc", "/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, nullptr) == 0;
}

[[noreturn]] void keeper_main(KeeperPlan& plan, int control, bool isolated) {
  // An exception must not unwind into the launcher's code; ending is what cleans up in any case.
  try {
    KeeperProcess(plan, control, isolated).run();
  } catch (...) {
    ::_exit(kExitFailure);
  }
  ::_exit(0);
}

struct Channel {
  UniqueFd launcher;
  UniqueFd keeper;
};

Channel make_channel() {
  int ends[2];
  check<Error>(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == 0,
               "[run] no socket pair: ", std::strerror(errno));
  // The kernel then tells each sender's pid as the launcher's own namespace knows it.
  const int on = 1;
  ::setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &on, sizeof on);
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

}  // namespace

Keeper::Keeper(KeeperPlan& plan) {
  ::prctl(PR_SET_CHILD_SUBREAPER, 1);  // if the keeper is killed, its orphans come to us
  if (plan.options.isolate) {
    Channel channel = make_channel();
    // clone, because unshare would put the launcher's own later threads out of its reach.
    pid_ = static_cast<pid_t>(::syscall(SYS_clone, CLONE_NEWPID | CLONE_NEWNS | SIGCHLD, nullptr,
                                        nullptr, nullptr, nullptr));
    if (pid_ == 0) {
      channel.launcher.reset();
      if (!enter_mount_namespace()) ::_exit(kExitFailure);
      keeper_main(plan, channel.keeper.get(), true);
    }
    channel.keeper.reset();
    control_ = std::move(channel.launcher);
    bool gone = pid_ < 0;
    while (!gone && !receive(gone)) comm::poll_for(fd(), POLLIN, Deadline::after(kKillTimeout));
    if (!gone) {
      plan.files.clear();
      return;
    }
    if (pid_ > 0) ::waitpid(pid_, nullptr, 0);
  }
  Channel channel = make_channel();
  pid_ = ::fork();
  check<Error>(pid_ >= 0, "[run] cannot fork: ", std::strerror(errno));
  if (pid_ == 0) {
    channel.launcher.reset();
    control_.reset();
    keeper_main(plan, channel.keeper.get(), false);
  }
  control_ = std::move(channel.launcher);
  plan.files.clear();
}

Keeper::~Keeper() {
  close(Deadline::after(kKillTimeout));
}

std::optional<KeeperReport> Keeper::receive(bool& gone) {
  KeeperReport report{};
  iovec part{&report, sizeof report};
  alignas(cmsghdr) std::array<char, CMSG_SPACE(sizeof(ucred))> extra{};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = extra.data();
  message.msg_controllen = extra.size();
  const ssize_t got = ::recvmsg(control_.get(), &message, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return std::nullopt;
  if (got != static_cast<ssize_t>(sizeof report)) {
    gone = true;
    return std::nullopt;
  }
  const cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header && header->cmsg_type == SCM_CREDENTIALS) {
    ucred sender{};
    std::memcpy(&sender, CMSG_DATA(header), sizeof sender);
    report.pid = sender.pid;
  }
  return report;
}

void Keeper::send(const KeeperCommand& command) {
  // A keeper that is gone shows when its reports are read.
  while (::send(control_.get(), &command, sizeof command, MSG_NOSIGNAL) < 0 && errno == EINTR) {
  }
}

void Keeper::close(Deadline deadline) {
  control_.reset();
  if (pid_ <= 0) return;
  const UniqueFd process(static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0)));
  if (process && !comm::poll_for(process.get(), POLLIN, deadline)) ::kill(pid_, SIGKILL);
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  kill_descendants(Deadline::after(kKillTimeout), [](pid_t, int) {});
}

}  // namespace cohort::tools
