#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "cohort/core/deadline.h"

namespace cohort::test {

// A child process of a test, with its output captured. The destructor kills and reaps it. Not
// thread-safe.
class ChildProcess {
 public:
  // Starts args[0] (searched on PATH) with `environment` ("NAME=value") added to the test's own.
  explicit ChildProcess(std::vector<std::string> args, std::vector<std::string> environment = {});
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  // Waits for the end of the process (not of its output's other holders): its exit code, or minus
  // the signal that ended it; nothing when the deadline passed first.
  std::optional<int> wait(Milliseconds timeout);
  // Reads until standard output contains `text`; false when it ended or the deadline passed first.
  bool wait_for(const std::string& text, Milliseconds timeout);
  // Reads until both outputs are closed by every holder; false when the deadline passed first.
  bool wait_for_end_of_output(Milliseconds timeout);

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

 private:
  bool pump(Deadline deadline, bool also_exit);

  pid_t pid_ = -1;
  int pidfd_ = -1;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::optional<int> status_;
  std::string out_;
  std::string err_;
};

// Calls `condition` every few milliseconds until it holds; false when the deadline passed first.
template <typename Condition>
bool eventually(Condition&& condition, Milliseconds timeout) {
  const Deadline deadline = Deadline::after(timeout);
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::sleep_for(Milliseconds(5));
  }
  return true;
}

}  // namespace cohort::test
