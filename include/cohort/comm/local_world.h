#pragma once

#include <functional>
#include <memory>
#include <optional>

#include "cohort/comm/flight_recorder.h"
#include "cohort/comm/process_group.h"
#include "cohort/core/context.h"

namespace cohort::comm {

struct LocalWorldOptions {
  // Of every rank; `rank` is set, and the seeds are mixed with it so that ranks differ.
  RuntimeOptions runtime = {};
  Milliseconds timeout = kDefaultGroupTimeout;
  // Of every rank's flight recorder; unset: as the environment says.
  std::optional<FlightRecorderOptions> flight_recorder = {};
};

// Ranks that are threads of this process, each with a Runtime and a Context of its own. They share
// memory as processes of one host do, through the same transport. For tests and for programs that
// embed the library. Immutable; run() may be called any number of times.
class LocalWorld {
 public:
  // InvalidArgument unless size is at least 1.
  explicit LocalWorld(int size, LocalWorldOptions options = {});

  // Calls `fn` once per rank, each in its own thread, and returns when all are done and their
  // streams have run dry. When ranks fail, the first error that is no mere PeerError or RemoteError
  // is rethrown, after the others were aborted with its text and have come to their ends.
  void run(const std::function<void(const std::shared_ptr<ProcessGroup>&)>& fn) const;

  int size() const { return size_; }

 private:
  int size_;
  LocalWorldOptions options_;
};

}  // namespace cohort::comm
