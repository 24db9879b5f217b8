#include "tools/run_cpus.h"

#include <algorithm>
#include <fstream>
#include <string>
#include <tuple>

namespace cohort::tools {
namespace {

// A number that the system tells of a CPU, or 0 where it tells nothing.
int topology(int cpu, const char* what) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/" + what);
  int value = 0;
  return file >> value ? value : 0;
}

// The usable CPUs by socket and core: the numbering of CPUs often puts the second threads of all
// cores behind the first ones, and two ranks must not get the two halves of the same cores.
std::vector<int> usable_cpus() {
  cpu_set_t usable;
  if (::sched_getaffinity(0, sizeof usable, &usable) != 0) return {};
  std::vector<std::tuple<int, int, int>> places;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &usable)) {
      places.emplace_back(topology(cpu, "physical_package_id"), topology(cpu, "core_id"), cpu);
    }
  }
  std::sort(places.begin(), places.end());
  std::vector<int> cpus;
  cpus.reserve(places.size());
  for (const auto& place : places) cpus.push_back(std::get<2>(place));
  return cpus;
}

}  // namespace

std::vector<cpu_set_t> divide_cpus(int ranks) {
  const std::vector<int> cpus = usable_cpus();
  const auto count = static_cast<int>(cpus.size());
  if (count < ranks) return {};
  std::vector<cpu_set_t> sets(static_cast<std::size_t>(ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    cpu_set_t& set = sets[static_cast<std::size_t>(rank)];
    CPU_ZERO(&set);
    // Sizes differ by one at most.
    for (int i = count * rank / ranks; i < count * (rank + 1) / ranks; ++i) {
      CPU_SET(cpus[static_cast<std::size_t>(i)], &set);
    }
  }
  return sets;
}

}  // namespace cohort::tools
