#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "cohort/comm/init.h"
#include "cohort/comm/launch_env.h"
#include "cohort/core/error.h"
#include "comm/store_socket.h"
#include "tools/bench.h"
#include "tools/commands.h"

namespace cohort::tools {
namespace {

std::vector<std::string> own_arguments() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(file, argument, '\0');) arguments.push_back(argument);
  check<Error>(!arguments.empty(), "[bench] cannot read /proc/self/cmdline");
  return arguments;
}

// cohort run -n N -- cohort <our arguments> --result-fd FD
std::vector<std::string> launcher_arguments(int ranks, int result_fd) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::string> arguments = {self, "run", "-n", std::to_string(ranks), "--", self};
  const std::vector<std::string> own = own_arguments();
  arguments.insert(arguments.end(), own.begin() + 1, own.end());
  arguments.push_back("--result-fd=" + std::to_string(result_fd));
  return arguments;
}

// The ranks inherit the open write end; `ours` is the other one.
pid_t start(std::vector<std::string> arguments, int ours) {
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const pid_t parent = ::getpid();
  const pid_t pid = ::fork();
  check<Error>(pid >= 0, "[bench] cannot start the launcher: ", std::strerror(errno));
  if (pid > 0) return pid;
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);  // the launcher ends its ranks
  if (::getppid() != parent) ::_exit(kExitFailure);
  ::close(ours);
  ::execv(argv.front(), argv.data());
  ::_exit(kExitNotExecutable);
}

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> buffer{};
  while (true) {
    const ssize_t got = ::read(fd, buffer.data(), buffer.size());
    if (got > 0) {
      text.append(buffer.data(), static_cast<std::size_t>(got));
    } else if (got == 0 || errno != EINTR) {
      return text;
    }
  }
}

int exit_code_of(pid_t pid) {
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    check<Error>(errno == EINTR, "[bench] lost the launcher: ", std::strerror(errno));
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : kExitSignal + WTERMSIG(status);
}

}  // namespace

bool is_rank() {
  return comm::LaunchEnv::from_environment().launcher != comm::Launcher::alone;
}

Launched launch_ranks(int ranks) {
  std::array<int, 2> ends{};
  check<Error>(::pipe(ends.data()) == 0, "[bench] no pipe: ", std::strerror(errno));
  const comm::UniqueFd ours(ends[0]);
  comm::UniqueFd theirs(ends[1]);
  const pid_t pid = start(launcher_arguments(ranks, theirs.get()), ours.get());
  theirs = {};
  Launched launched;
  launched.results = read_all(ours.get());
  launched.exit_code = exit_code_of(pid);
  return launched;
}

void write_result(const BenchOptions& options, const std::string& line) {
  const std::string text = line + '\n';
  if (options.result_fd < 0) {
    std::cout << text << std::flush;
    return;
  }
  // One write of less than PIPE_BUF bytes is atomic.
  check<Error>(
      ::write(options.result_fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
      "[bench] cannot write the result: ", std::strerror(errno));
}

int run_bench(const BenchOptions& options, const BenchBody& body) {
  if (options.ranks > 1 && !is_rank()) {
    const Launched launched = launch_ranks(options.ranks);
    std::cout << launched.results << std::flush;
    return launched.exit_code;
  }
  return comm::run_main(0, nullptr, [&](int, char**) {
    const auto group = comm::init_from_env({.backend = options.transport});
    body(group);
    return 0;
  });
}

}  // namespace cohort::tools
