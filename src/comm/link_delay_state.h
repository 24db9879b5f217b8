#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <thread>

#include "cohort/core/context.h"

namespace cohort::comm {

// The rank's link delay, which all of its groups share.
class LinkDelay {
 public:
  static std::shared_ptr<LinkDelay> of(Runtime& runtime) {
    return runtime.shared<LinkDelay>([] { return new LinkDelay; });
  }

  void set(std::chrono::microseconds delay) { micros_.store(delay.count()); }
  void sleep() const {
    const std::int64_t micros = micros_.load(std::memory_order_relaxed);
    if (micros > 0) [[unlikely]] {
      std::this_thread::sleep_for(std::chrono::microseconds(micros));
    }
  }

 private:
  std::atomic<std::int64_t> micros_{0};
};

}  // namespace cohort::comm
