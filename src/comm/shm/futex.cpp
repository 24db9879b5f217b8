#include "comm/shm/futex.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>
#include <ctime>

namespace cohort::comm::shm {

void Word::publish(std::uint32_t next) {
  // Sequentially consistent with sleep(): either the waiter sees the value, or this sees the
  // waiter.
  value.store(next, std::memory_order_seq_cst);
  if (waiters.load(std::memory_order_seq_cst) != 0) wake_all();
}

void Word::wake_all() {
  syscall(SYS_futex, &value, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Word::sleep(std::uint32_t seen, Milliseconds slice) {
  waiters.fetch_add(1, std::memory_order_seq_cst);
  if (value.load(std::memory_order_seq_cst) == seen) {
    const timespec limit{.tv_sec = slice.count() / 1000,
                         .tv_nsec = slice.count() % 1000 * 1'000'000};
    syscall(SYS_futex, &value, FUTEX_WAIT, seen, &limit, nullptr, 0);
  }
  waiters.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace cohort::comm::shm
