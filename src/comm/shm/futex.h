#pragma once

#include <atomic>
#include <cstdint>

#include "cohort/core/deadline.h"

namespace cohort::comm::shm {

// A number in shared memory that one side publishes and others wait for, asleep in the kernel if
// need be, across processes. (std::atomic::wait only wakes threads of its own process.)
// All-zero memory is a valid Word. It fills a cache line, so that words do not disturb each other.
struct alignas(64) Word {
  std::atomic<std::uint32_t> value{0};
  // Threads asleep or about to be; zero spares the publisher a system call. A waiter that is killed
  // stays counted, which costs later publishers that call and nothing else.
  std::atomic<std::uint32_t> waiters{0};

  std::uint32_t load() const { return value.load(std::memory_order_acquire); }
  // Sets the value and wakes whoever waits. All writes before it are visible to who reads it.
  void publish(std::uint32_t next);
  void wake_all();
  // Sleeps until woken, at most `slice`, unless the value is no longer `seen`.
  void sleep(std::uint32_t seen, Milliseconds slice);
};
static_assert(sizeof(Word) == 64 && std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace cohort::comm::shm
