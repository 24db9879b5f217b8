#pragma once

#include <cstdint>
#include <iosfwd>
#include <vector>

namespace cohort {

// How one backward's communication lay in time. Milliseconds, counted from the moment backward
// reached the module's outputs; on the CPU by the host's clock.
//
// A bucket is ready when its last gradient is there, starts when the rank enters its collective and
// ends when the result is there. Of [start, end], what lies before the end of the gradients'
// computation is hidden, the rest is exposed. The bubble is the time the collective queue was idle
// before the bucket started.
struct OverlapReport {
  struct Bucket {
    int index = 0;
    std::int64_t bytes = 0;
    double ready_ms = 0;
    double start_ms = 0;
    double end_ms = 0;
    double hidden_ms = 0;
    double exposed_ms = 0;
    double bubble_ms = 0;
  };

  std::vector<Bucket> buckets;
  double compute_end_ms = 0;    // the last gradient was computed
  double backward_end_ms = 0;   // the last bucket was reduced
  double communication_ms = 0;  // sum of the buckets' [start, end]
  double hidden_ms = 0;
  double exposed_ms = 0;
  std::int64_t bytes = 0;
};

// As a table, one line per bucket.
std::ostream& operator<<(std::ostream& out, const OverlapReport& report);

}  // namespace cohort
