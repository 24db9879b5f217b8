#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "tools/trace_dump.h"

namespace cohort::tools {

// The dumps of a job's ranks, brought together: which record of one rank meets which of another.

// A group as all its ranks know it: its name, its members, and how many of that name and those
// members were formed before.
struct GroupKey {
  std::string name;
  std::vector<int> ranks;
  int instance = 0;
  auto operator<=>(const GroupKey&) const = default;
};

// Where ranks meet: a collective of a group by its number, or the n-th message from one rank of the
// group to another.
struct Meeting {
  GroupKey group;
  int from = -1;  // of messages, else -1
  int to = -1;
  std::uint64_t sequence = 0;
  auto operator<=>(const Meeting&) const = default;
  bool is_message() const { return from >= 0; }
};

// A rank's way to a meeting.
struct Visit {
  const TraceRecord* record = nullptr;
  std::size_t index = 0;  // in the rank's records
  Meeting meeting;
};

// What must be equal on all ranks that meet.
using Signature =
    std::tuple<std::string, std::string, std::string, std::int64_t, int, double, std::string>;
Signature signature_of(const TraceRecord& record);

class TraceView {
 public:
  explicit TraceView(const std::map<int, TraceDump>& dumps);

  const std::map<int, TraceDump>& dumps() const { return dumps_; }
  // Ranks of the world that some dump names, and those of them without a dump.
  const std::set<int>& world() const { return world_; }
  std::vector<int> without_dump() const;

  // Everybody's records of one meeting, by rank of the world.
  using Visits = std::map<int, Visit>;
  const std::map<Meeting, Visits>& meetings() const { return meetings_; }
  const Visit* visit(int rank, const Meeting& meeting) const;

  // The collective in which `rank` is, or that it waits to begin: the first that has not ended,
  // behind the last one that did. Null when it is in none.
  const Visit* stuck(int rank) const;
  // The last one that `rank` ended, in any group, or null.
  const Visit* last_finished(int rank) const;
  // Whether `rank` has been at the meeting, or is there.
  bool reached(int rank, const Meeting& meeting) const;
  // Those who must come to a meeting besides `rank`, in ranks of the world.
  static std::vector<int> partners(const Meeting& meeting, int rank);
  const TraceGroup* group(int rank, const GroupKey& key) const;

 private:
  void add(int rank, const TraceDump& dump);

  const std::map<int, TraceDump>& dumps_;
  std::set<int> world_;
  std::map<Meeting, Visits> meetings_;
  std::map<int, std::map<GroupKey, const TraceGroup*>> groups_;
  std::map<int, Visit> stuck_;
  std::map<int, Visit> finished_;
};

// "all_reduce(sum) of 12 f32 (bucket 3)"; what is not printable becomes '?'.
std::string describe(const TraceRecord& record);
std::string printable(const std::string& text);
// "57th"
std::string ordinal(std::uint64_t number);
// "rank 1", "ranks 0, 2 and 3"
std::string list(const std::vector<int>& ranks);

}  // namespace cohort::tools
