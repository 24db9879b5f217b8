#pragma once

#include <map>
#include <string>

#include "tools/trace_dump.h"

namespace cohort::tools {

// What the dumps of a job's ranks say together, in one sentence.
struct Verdict {
  bool desync = false;  // a rank did something else than the others, or nothing where they wait
  std::string sentence;
};

// `dumps` by rank, not empty.
Verdict explain(const std::map<int, TraceDump>& dumps);

}  // namespace cohort::tools
