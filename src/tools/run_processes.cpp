#include "tools/run_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace cohort::tools {
namespace {

// Of /proc/<pid>/stat: "pid (any name) state parent group session terminal its-group flags ...".
// All zero when unknown.
struct ProcessStat {
  pid_t parent = 0;
  unsigned flags = 0;
};

ProcessStat stat_of(const std::string& pid) {
  std::array<char, 512> text{};
  const std::string path = "/proc/" + pid + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  const ssize_t got = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  const char* name_end = got > 0 ? std::strrchr(text.data(), ')') : nullptr;
  ProcessStat stat;
  if (name_end == nullptr ||
      std::sscanf(name_end, ") %*c %d %*d %*d %*d %*d %u", &stat.parent, &stat.flags) != 2) {
    return {};
  }
  return stat;
}

void kill_children() {
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(::opendir("/proc"), &::closedir);
  if (!processes) return;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(processes.get())) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (stat_of(entry->d_name).parent == self) ::kill(std::atoi(entry->d_name), SIGKILL);
  }
}

}  // namespace

bool reap(const std::function<void(pid_t, int)>& reaped) {
  while (true) {
    int status = 0;
    const pid_t pid = ::waitpid(-1, &status, WNOHANG);
    if (pid > 0) {
      reaped(pid, status);
    } else {
      return pid == 0;
    }
  }
}

bool is_ending(pid_t pid) {
  constexpr unsigned kExiting = 4;  // PF_EXITING of the kernel
  return (stat_of(std::to_string(pid)).flags & kExiting) != 0;
}

bool kill_descendants(Deadline deadline, const std::function<void(pid_t, int)>& reaped) {
  while (reap(reaped)) {
    if (deadline.passed()) return false;
    kill_children();
    // A killed process takes a moment to become a zombie; SIGCHLD may be blocked here, so look
    // again after a millisecond.
    ::poll(nullptr, 0, 1);
  }
  return true;
}

}  // namespace cohort::tools
