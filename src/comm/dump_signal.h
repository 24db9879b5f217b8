#pragma once

#include <functional>
#include <memory>

namespace cohort::comm {

// While it lives, SIGUSR1 makes a thread of its own call `dump`. Only where the signal's
// disposition is the default one: a program that handles or ignores SIGUSR1 goes on doing so, and
// one that installs a handler later simply replaces this one. A signal's handler is the process's,
// so there is one at a time; a second does nothing.
class DumpSignal {
 public:
  explicit DumpSignal(std::function<void()> dump);
  ~DumpSignal();
  DumpSignal(const DumpSignal&) = delete;
  DumpSignal& operator=(const DumpSignal&) = delete;

  bool installed() const { return listener_ != nullptr; }

 private:
  class Listener;
  std::unique_ptr<Listener> listener_;
};

}  // namespace cohort::comm
