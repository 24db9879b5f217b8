#include "tools/run_processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>

namespace cohort::tools {
namespace {

// The parent of a process, from /proc/<pid>/stat: "pid (any name) state parent ...". 0 when
// unknown.
pid_t parent_of(const char* pid) {
  std::array<char, 512> text{};
  const std::string path = std::string("/proc/") + pid + "/stat";
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t got = ::read(fd, text.data(), text.size() - 1);
  ::close(fd);
  const char* name_end = got > 0 ? std::strrchr(text.data(), ')') : nullptr;
  return name_end && std::strlen(name_end) > 4 ? std::atoi(name_end + 4) : 0;
}

void kill_children() {
  const std::unique_ptr<DIR, int (*)(DIR*)> processes(::opendir("/proc"), &::closedir);
  if (!processes) return;
  const pid_t self = ::getpid();
  while (const dirent* entry = ::readdir(processes.get())) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (parent_of(entry->d_name) == self) ::kill(std::atoi(entry->d_name), SIGKILL);
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
