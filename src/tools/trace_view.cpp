#include "tools/trace_view.h"

#include <algorithm>

#include "cohort/core/error.h"

namespace cohort::tools {
namespace {

// Messages of errors quote the operating system and the user; a sentence has an end.
constexpr std::size_t kMaxText = 600;

bool is_message(const TraceRecord& record) {
  return record.operation == "send" || record.operation == "recv";
}

}  // namespace

std::string printable(const std::string& text) {
  std::string clean = text.substr(0, kMaxText);
  for (char& c : clean) {
    if (static_cast<unsigned char>(c) < 32 || c == 127) c = '?';
  }
  return text.size() > kMaxText ? clean + "..." : clean;
}

std::string describe(const TraceRecord& record) {
  std::string text = record.operation;
  if (!record.reduce.empty()) {
    text += "(" + record.reduce + (record.scale != 1 ? str(" x ", record.scale) : "") + ")";
  } else if (record.peer >= 0) {
    text += str(record.operation == "send" ? "(to rank " : "(from rank ", record.peer, ")");
  }
  if (record.operation == "allocate") {
    text += str(" of ", record.elements, " bytes");
  } else if (record.operation != "barrier" && record.operation != "split") {
    text += str(" of ", record.elements, " ", record.dtype);
  }
  if (!record.owner.empty()) text += " (" + record.owner + ")";
  return printable(text);
}

std::string ordinal(std::uint64_t number) {
  const bool teen = number % 100 / 10 == 1;
  const std::uint64_t last = teen ? 0 : number % 10;
  return std::to_string(number) + (last == 1 ? "st" : last == 2 ? "nd" : last == 3 ? "rd" : "th");
}

std::string list(const std::vector<int>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == ranks.size() ? " and " : ", ") + std::to_string(ranks[i]);
  }
  return text;
}

Signature signature_of(const TraceRecord& record) {
  // The two ends of a message have different names for it, and say each other's rank.
  if (is_message(record)) return {"", "", record.dtype, record.elements, -1, 1, record.owner};
  // Ranks send different amounts in an uneven all_to_all.
  const std::int64_t elements = record.operation == "all_to_all" ? 0 : record.elements;
  return {record.operation, record.reduce, record.dtype, elements,
          record.peer,      record.scale,  record.owner};
}

TraceView::TraceView(const std::map<int, TraceDump>& dumps) : dumps_(dumps) {
  for (const auto& [rank, dump] : dumps) add(rank, dump);
}

void TraceView::add(int rank, const TraceDump& dump) {
  world_.insert(rank);
  std::map<std::int64_t, GroupKey> keys;
  std::map<std::pair<std::string, std::vector<int>>, int> instances;
  for (const auto& [id, group] : dump.groups) {
    world_.insert(group.ranks.begin(), group.ranks.end());
    const GroupKey key{group.name, group.ranks, instances[{group.name, group.ranks}]++};
    keys[id] = key;
    groups_[rank][key] = &group;
  }
  bool after_finished = true;
  for (std::size_t i = 0; i < dump.records.size(); ++i) {
    const TraceRecord& record = dump.records[i];
    Visit visit{&record, i, {.group = keys.at(record.group), .sequence = record.sequence}};
    if (is_message(record)) {
      const int self = dump.groups.at(record.group).rank;
      visit.meeting.from = record.operation == "send" ? self : record.peer;
      visit.meeting.to = record.operation == "send" ? record.peer : self;
    }
    meetings_[visit.meeting].try_emplace(rank, visit);
    if (record.state == TraceState::finished) {
      finished_[rank] = visit;
      stuck_.erase(rank);
      after_finished = true;
    } else if (after_finished) {
      stuck_[rank] = visit;
      after_finished = false;
    }
  }
}

std::vector<int> TraceView::without_dump() const {
  std::vector<int> missing;
  for (const int rank : world_) {
    if (!dumps_.contains(rank)) missing.push_back(rank);
  }
  return missing;
}

const Visit* TraceView::visit(int rank, const Meeting& meeting) const {
  const auto found = meetings_.find(meeting);
  if (found == meetings_.end()) return nullptr;
  const auto mine = found->second.find(rank);
  return mine == found->second.end() ? nullptr : &mine->second;
}

const Visit* TraceView::stuck(int rank) const {
  const auto found = stuck_.find(rank);
  return found == stuck_.end() ? nullptr : &found->second;
}

const Visit* TraceView::last_finished(int rank) const {
  const auto found = finished_.find(rank);
  return found == finished_.end() ? nullptr : &found->second;
}

const TraceGroup* TraceView::group(int rank, const GroupKey& key) const {
  const auto known = groups_.find(rank);
  if (known == groups_.end()) return nullptr;
  const auto found = known->second.find(key);
  return found == known->second.end() ? nullptr : found->second;
}

bool TraceView::reached(int rank, const Meeting& meeting) const {
  if (const Visit* there = visit(rank, meeting)) {
    const Visit* at = stuck(rank);
    return at == nullptr || there->index <= at->index;
  }
  // So long ago that the ring has no record of it any more?
  if (meeting.is_message()) {
    const auto later = meetings_.upper_bound(meeting);
    return later != meetings_.end() && later->first.group == meeting.group &&
           later->first.from == meeting.from && later->first.to == meeting.to &&
           later->second.contains(rank);
  }
  const TraceGroup* known = group(rank, meeting.group);
  return known != nullptr && known->collectives >= meeting.sequence;
}

std::vector<int> TraceView::partners(const Meeting& meeting, int rank) {
  const std::vector<int>& ranks = meeting.group.ranks;
  std::vector<int> result;
  if (meeting.is_message()) {
    result = {ranks[static_cast<std::size_t>(meeting.from)],
              ranks[static_cast<std::size_t>(meeting.to)]};
  } else {
    result = ranks;
  }
  std::erase(result, rank);
  return result;
}

}  // namespace cohort::tools
