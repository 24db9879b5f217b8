#pragma once

#include <chrono>

namespace cohort::comm {

// For experiments with overlap on one machine: from now on each collective, send and recv of the
// current context's rank (but allocate and split) takes at least this much longer, as over a link
// of that latency. The queue sleeps meanwhile, and the processor is free for computation. Zero ends
// it. Groups on CPUs only. Thread-safe.
void set_link_delay(std::chrono::microseconds delay);

}  // namespace cohort::comm
