#pragma once

#include <algorithm>
#include <chrono>

namespace cohort {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

// A point in time after which a wait gives up. Every wait of the library has one.
class Deadline {
 public:
  static Deadline after(Milliseconds timeout) {
    // Far-away timeouts are capped at a year, so that adding them to now never overflows.
    return Deadline(Clock::now() + std::min(timeout, Milliseconds(std::chrono::hours(24 * 365))));
  }

  bool passed() const { return Clock::now() >= at_; }
  Clock::time_point at() const { return at_; }
  // Time left, rounded up; zero once passed.
  Milliseconds left() const {
    return std::max(Milliseconds(0), std::chrono::ceil<Milliseconds>(at_ - Clock::now()));
  }
  Deadline sooner(Deadline other) const { return Deadline(std::min(at_, other.at_)); }

 private:
  explicit Deadline(Clock::time_point at) : at_(at) {}
  Clock::time_point at_;
};

}  // namespace cohort
