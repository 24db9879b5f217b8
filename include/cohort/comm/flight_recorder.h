#pragma once

#include <cstdint>
#include <string>

namespace cohort::comm {

// What a rank remembers of its collectives, and where it writes that when one fails.
// docs/hangs.md says how to read the files.
struct FlightRecorderOptions {
  // How many of the rank's last collectives are kept (some 130 bytes each); 0 for none.
  std::int64_t size = 1024;
  // The folder where a rank writes flight-rank<N>.json when a group fails, when it leaves its last
  // group, and on SIGUSR1 under run_main(). Empty: nowhere.
  std::string trace_dir = {};
  // The ranks compare what they are about to do before every collective. False is for measuring
  // what that costs: ranks that disagree then read and write each other's wrong memory.
  bool check_signatures = true;

  // COHORT_FLIGHT_RECORDER_SIZE, COHORT_TRACE_DIR and COHORT_CHECK_SIGNATURES. InvalidArgument for
  // a value that makes no sense, naming the variable.
  static FlightRecorderOptions from_environment();
};

// Writes what the current context's rank remembers to `path`, replacing the file in one step. Any
// thread; the collectives go on meanwhile. FileError when the file cannot be written.
void dump_flight_record(const std::string& path);

}  // namespace cohort::comm
