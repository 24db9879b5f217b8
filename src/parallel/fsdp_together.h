#pragma once

#include <exception>
#include <string>

#include "parallel/fsdp_runtime.h"
#include "parallel/state_places.h"
#include "parallel/what_of.h"

namespace cohort::parallel {

// Runs `step`, in which all ranks call the same collectives: a rank that an exception keeps from
// its part ends the group, so that none waits for it.
template <typename Step>
void run_together(FSDPRuntime& runtime, const std::string& what, Step&& step) {
  try {
    step();
  } catch (...) {
    const std::string text = "in " + what + ": " + what_of(std::current_exception());
    if (!runtime.group()->failure()) runtime.abort(text);
    throw;
  }
}

// Whether rank 0 alone brings something to load. Collective.
bool rank0_alone_brings(comm::ProcessGroup& group, bool something, const std::string& what);

// What a call that must be the same on all ranks is compared by.
std::string call_text(const std::string& what, bool rank0_only);

// Whether this rank takes part in the gather of a tensor: with rank0_only, where rank 0 does.
inline bool gathers(const StatePlace& place, bool rank0_only) {
  return !rank0_only || place.replica == 0;
}

}  // namespace cohort::parallel
