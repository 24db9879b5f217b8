#pragma once

#include <algorithm>
#include <chrono>
#include <thread>

#include "cohort/core/deadline.h"

namespace cohort::backend::cuda {

// Asks `done` until it says yes (true) or the deadline has passed (false). CUDA's own waits know no
// deadline, so a host that must not hang asks again and again: at once at first, since most waits
// are for work that is nearly over, then with pauses that grow to 200 microseconds, which leave the
// core to others and delay nobody by more than that.
template <typename Done>
bool poll_until(Deadline deadline, Done done) {
  constexpr int kEager = 64;
  constexpr auto kLongest = std::chrono::microseconds(200);
  auto pause = std::chrono::microseconds(10);
  for (int round = 0; !done(); ++round) {
    if (deadline.passed()) return done();
    if (round < kEager) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(pause);
      pause = std::min(2 * pause, kLongest);
    }
  }
  return true;
}

}  // namespace cohort::backend::cuda
