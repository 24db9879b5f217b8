#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace cohort::tools {

// A rank's flight record as docs/hangs.md describes the file. What is read is what others wrote:
// texts may hold anything, and numbers any value that the comments allow.

struct TraceGroup {
  std::string name;
  int rank = 0;
  std::vector<int> ranks;  // of the world; different ones, and this rank's at `rank`
  std::uint64_t collectives = 0;
  bool left = false;
  std::optional<std::string> failure;
};

enum class TraceState { enqueued, started, finished, failed };

struct TraceRecord {
  std::int64_t group = 0;  // a key of TraceDump::groups
  std::uint64_t sequence = 0;
  std::string operation;
  std::string reduce;  // empty where nothing is reduced
  std::string dtype;
  std::int64_t elements = 0;
  int peer = -1;  // in the group
  double scale = 1;
  std::string owner;
  TraceState state = TraceState::enqueued;
  // Nanoseconds since 1970, by the rank's host; 0 for not yet.
  double enqueued = 0;
  double started = 0;
  double finished = 0;
  std::optional<std::string> error;
};

struct TraceDump {
  std::string file;  // for messages
  int rank = 0;
  std::string reason;
  std::optional<std::string> exception;
  double written = 0;
  std::map<std::int64_t, TraceGroup> groups;
  std::vector<TraceRecord> records;  // in the order of the calls
};

// FileError that names `file` and what is wrong with it.
TraceDump parse_dump(std::string_view text, const std::string& file);

// The dumps in `paths`: files, and folders whose flight-rank*.json count; by rank. FileError for
// one that cannot be read, is no dump, or has the rank of another, and when there is none at all.
std::map<int, TraceDump> read_dumps(const std::vector<std::string>& paths);

}  // namespace cohort::tools
