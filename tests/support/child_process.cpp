#include "support/child_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <utility>

extern char** environ;  // NOLINT: POSIX names it

namespace cohort::test {
namespace {

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::string name_of(const std::string& variable) {
  return variable.substr(0, variable.find('='));
}

std::vector<std::string> merged(std::vector<std::string> added) {
  for (char** entry = environ; *entry; ++entry) {
    const std::string variable(*entry);
    if (std::none_of(added.begin(), added.end(), [&](const std::string& other) {
          return name_of(other) == name_of(variable);
        })) {
      added.push_back(variable);
    }
  }
  return added;
}

// Appends what can be read now; closes the descriptor at its end.
void drain(int& fd, std::string& text) {
  char buffer[4096];
  while (fd >= 0) {
    const ssize_t got = ::read(fd, buffer, sizeof buffer);
    if (got > 0) {
      text.append(buffer, static_cast<std::size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return;
    } else {
      ::close(fd);
      fd = -1;
    }
  }
}

}  // namespace

ChildProcess::ChildProcess(std::vector<std::string> args, std::vector<std::string> environment) {
  int out[2];
  int err[2];
  if (::pipe2(out, O_CLOEXEC) != 0 || ::pipe2(err, O_CLOEXEC) != 0) {
    throw std::runtime_error("pipe2 failed");
  }
  environment = merged(std::move(environment));
  const std::vector<char*> argv = pointers(args);
  const std::vector<char*> envp = pointers(environment);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    ::execvpe(argv[0], argv.data(), envp.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_fd_ = out[0];
  err_fd_ = err[0];
  ::fcntl(out_fd_, F_SETFL, O_NONBLOCK);
  ::fcntl(err_fd_, F_SETFL, O_NONBLOCK);
  if (pid_ < 0) throw std::runtime_error("fork failed");
  pidfd_ = static_cast<int>(::syscall(SYS_pidfd_open, pid_, 0));
  if (pidfd_ < 0) throw std::runtime_error("pidfd_open failed");
}

ChildProcess::~ChildProcess() {
  if (!status_ && pid_ > 0) {
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  for (const int fd : {pidfd_, out_fd_, err_fd_}) {
    if (fd >= 0) ::close(fd);
  }
}

void ChildProcess::signal(int number) const {
  if (!status_) ::kill(pid_, number);
}

// Reads whatever comes next; false when nothing came before the deadline.
bool ChildProcess::pump(Deadline deadline, bool also_exit) {
  pollfd entries[3] = {
      {out_fd_, POLLIN, 0}, {err_fd_, POLLIN, 0}, {also_exit && !status_ ? pidfd_ : -1, POLLIN, 0}};
  const int ready = ::poll(entries, 3, static_cast<int>(deadline.left().count()));
  if (ready <= 0) return ready < 0 && errno == EINTR;
  drain(out_fd_, out_);
  drain(err_fd_, err_);
  if (entries[2].revents != 0) {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    status_ = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
    drain(out_fd_, out_);
    drain(err_fd_, err_);
  }
  return true;
}

std::optional<int> ChildProcess::wait(Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  while (!status_ && pump(deadline, true)) {
  }
  return status_;
}

bool ChildProcess::wait_for(const std::string& text, Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  while (out_.find(text) == std::string::npos) {
    if (out_fd_ < 0 || !pump(deadline, false)) return false;
  }
  return true;
}

bool ChildProcess::wait_for_end_of_output(Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  while (out_fd_ >= 0 || err_fd_ >= 0) {
    if (!pump(deadline, false)) return false;
  }
  return true;
}

}  // namespace cohort::test
