#pragma once

#include <sched.h>

#include <vector>

namespace cohort::tools {

// Divides the CPUs that this process may use among `ranks` ranks, so that each gets whole cores
// next to each other. Empty when there are fewer CPUs than ranks, or more than a cpu_set_t holds.
std::vector<cpu_set_t> divide_cpus(int ranks);

}  // namespace cohort::tools
