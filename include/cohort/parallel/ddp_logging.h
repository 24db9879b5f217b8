#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace cohort {

// What DDP has done so far on this rank; PyTorch's "DDP logging data". Times are means per
// synchronising backward, in milliseconds by the host's clock; 0 before the first.
struct DDPLoggingData {
  int world_size = 1;
  int rank = 0;
  std::string backend;
  std::int64_t iterations = 0;                 // forwards with gradients
  std::int64_t synchronised_steps = 0;         // backwards that were reduced on all ranks
  std::int64_t failed_steps = 0;               // backwards that were to be, and ended by an error
  std::string last_error;                      // of the last failed step
  std::string comm_hook;                       // name of the registered hook; empty without
  int rebuilds = 0;                            // of the buckets
  std::vector<std::int64_t> bucket_bytes;      // in order of reduction
  std::vector<std::string> unused_parameters;  // of the last synchronised step, on all ranks
  double compute_ms = 0;                       // from the module's outputs to the last gradient
  double communication_ms = 0;                 // in collectives of buckets
  double overlap_ms = 0;                       // of that, hidden behind the computation
};

}  // namespace cohort
