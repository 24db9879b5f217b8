#include "comm/shm/memory_left.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <string>

namespace cohort::comm::shm {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();

std::size_t available_on_machine() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    std::size_t kib = 0;
    if (word == "MemAvailable:" && file >> kib) return kib * 1024;
  }
  return kUnlimited;
}

// A number in a file; nothing for "max", or when there is no such file.
std::optional<std::size_t> number_in(const std::string& path) {
  std::ifstream file(path);
  std::size_t value = 0;
  if (file >> value) return value;
  return std::nullopt;
}

// Bytes of files that count as used by a control group but would be given back.
std::size_t page_cache(const std::string& folder) {
  std::ifstream file(folder + "/memory.stat");
  std::string word;
  std::size_t value = 0;
  std::size_t sum = 0;
  while (file >> word >> value) {
    if (word == "inactive_file" || word == "active_file") sum += value;
  }
  return sum;
}

// The group of this process in the unified hierarchy, as a path below its mount: "/a/b".
std::string control_group() {
  std::ifstream file("/proc/self/cgroup");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("0::")) return line.substr(3);
  }
  return "/";
}

}  // namespace

std::size_t memory_left() {
  std::size_t left = available_on_machine();
  // A limit may sit on any ancestor.
  for (std::string group = control_group();; group = group.substr(0, group.rfind('/'))) {
    const std::string folder = "/sys/fs/cgroup" + group;
    const auto limit = number_in(folder + "/memory.max");
    const auto used = number_in(folder + "/memory.current");
    if (limit && used) {
      const std::size_t kept = *used - std::min(*used, page_cache(folder));
      left = std::min(left, *limit - std::min(*limit, kept));
    }
    if (group.find('/') == std::string::npos) break;
  }
  return left;
}

}  // namespace cohort::comm::shm
