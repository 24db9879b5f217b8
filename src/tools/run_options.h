#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cohort/core/deadline.h"

namespace cohort::tools {

// What `cohort run` was asked for.
struct RunOptions {
  int ranks = 1;  // on this node
  int nodes = 1;
  int node_rank = 0;
  std::string master_addr = {};  // empty: this host
  int master_port = 0;           // 0: the system picks (one node only)
  std::string bind_addr = {};    // empty: master_addr
  std::string job_id = {};       // empty: made up
  std::string log_dir = {};      // empty: output goes to ours
  std::string trace_dir = {};    // empty: COHORT_TRACE_DIR as it is
  double grace_seconds = 10;
  int threads_per_rank = 0;  // 0: OMP_NUM_THREADS as it is, or else 1
  bool pin = true;
  bool isolate = true;                    // use a PID namespace where that is permitted
  std::vector<std::string> program = {};  // with its arguments

  int world_size() const { return ranks * nodes; }
  int global_rank(int local_rank) const { return node_rank * ranks + local_rank; }
  Milliseconds grace() const {
    return Milliseconds(static_cast<std::int64_t>(grace_seconds * 1e3));
  }
};

// Throws InvalidArgument for what makes no sense.
void validate(const RunOptions& options);

// The file that `name` names, as a shell would find it. `exit_code` is 127 (not found) or 126 (not
// executable) when the result is empty.
std::string find_program(const std::string& name, int& exit_code);

// The environment of one rank: this process's own with the job's variables set.
struct JobIdentity {
  std::string id;
  std::string secret;
  std::uint16_t port = 0;
};
std::vector<std::string> rank_environment(const RunOptions& options, const JobIdentity& job,
                                          int local_rank);

}  // namespace cohort::tools
