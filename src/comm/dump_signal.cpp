#include "comm/dump_signal.h"

#include <signal.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <thread>
#include <utility>

namespace cohort::comm {
namespace {

// What a signal handler can reach is process-wide by nature: the descriptor it writes to, or -1.
// Owned by the one Listener; a handler that runs late finds -1, or writes to a descriptor whose
// reader has gone.
constinit std::atomic<int> wake_fd{-1};
static_assert(std::atomic<int>::is_always_lock_free);

void on_signal(int) {
  const int saved = errno;
  const int fd = wake_fd.load(std::memory_order_relaxed);
  const std::uint64_t one = 1;
  // Async-signal-safe, and never blocks: a full counter means that a dump is due already.
  if (fd >= 0) {
    [[maybe_unused]] const ssize_t wrote = ::write(fd, &one, sizeof one);
  }
  errno = saved;
}

}  // namespace

class DumpSignal::Listener {
 public:
  Listener(int fd, std::function<void()> dump)
      : fd_(fd), dump_(std::move(dump)), thread_(start(this)) {}

  ~Listener() {
    struct sigaction current {};
    ::sigaction(SIGUSR1, nullptr, &current);
    if (current.sa_handler == on_signal) {
      struct sigaction standard {};
      standard.sa_handler = SIG_DFL;
      ::sigaction(SIGUSR1, &standard, nullptr);
    }
    stopping_.store(true, std::memory_order_release);
    const std::uint64_t one = 1;
    while (::write(fd_, &one, sizeof one) < 0 && errno == EINTR) {
    }
    thread_.join();
    wake_fd.store(-1, std::memory_order_relaxed);
    ::close(fd_);
  }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

 private:
  // Signals are for the program's own threads.
  static std::thread start(Listener* self) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    std::thread thread([self] { self->listen(); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  }

  // Sleeps until somebody wants a dump, or the end: nothing else depends on it.
  void listen() {
    std::uint64_t count = 0;
    for (;;) {
      if (::read(fd_, &count, sizeof count) < 0 && errno != EINTR) return;
      if (stopping_.load(std::memory_order_acquire)) return;
      dump_();
    }
  }

  const int fd_;
  const std::function<void()> dump_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

DumpSignal::DumpSignal(std::function<void()> dump) {
  struct sigaction current {};
  if (::sigaction(SIGUSR1, nullptr, &current) != 0 || (current.sa_flags & SA_SIGINFO) != 0 ||
      current.sa_handler != SIG_DFL) {
    return;
  }
  const int fd = ::eventfd(0, EFD_CLOEXEC);
  if (fd < 0) return;
  int nobody = -1;
  if (!wake_fd.compare_exchange_strong(nobody, fd)) {
    ::close(fd);
    return;
  }
  listener_ = std::make_unique<Listener>(fd, std::move(dump));
  struct sigaction ours {};
  ours.sa_handler = on_signal;
  ours.sa_flags = SA_RESTART;
  sigemptyset(&ours.sa_mask);
  ::sigaction(SIGUSR1, &ours, nullptr);
}

DumpSignal::~DumpSignal() = default;

}  // namespace cohort::comm
