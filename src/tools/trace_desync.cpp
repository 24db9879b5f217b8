#include "tools/trace_desync.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "cohort/core/error.h"
#include "tools/trace_view.h"

namespace cohort::tools {
namespace {

// Dumps of a job that runs are written one after the other: who waits shorter than this need not
// wait in vain.
constexpr double kRunningNs = 1e9;

std::string seconds(double ns) {
  std::ostringstream out;
  out.precision(3);
  out << std::max(ns, 0.0) * 1e-9 << " s";
  return std::move(out).str();
}

// "as its 57th collective of group 'world'"
std::string place(const Meeting& meeting) {
  const char* kind =
      meeting.is_message() ? " message between these ranks in group '" : " collective of group '";
  return ordinal(meeting.sequence) + kind + printable(meeting.group.name) + "'";
}

std::string quoted_group(const Meeting& meeting) {
  return "group '" + printable(meeting.group.name) + "'";
}

double earliest(const TraceView::Visits& visits) {
  double first = INFINITY;
  for (const auto& [rank, visit] : visits) first = std::min(first, visit.record->enqueued);
  return first;
}

// ---- Ranks that called different things.

// A rank's record `ahead` collectives behind a meeting, or null.
const TraceRecord* later(const TraceView& view, int rank, Meeting meeting, std::int64_t ahead) {
  const auto sequence = static_cast<std::int64_t>(meeting.sequence) + ahead;
  if (sequence < 1) return nullptr;
  meeting.sequence = static_cast<std::uint64_t>(sequence);
  const Visit* visit = view.visit(rank, meeting);
  return visit ? visit->record : nullptr;
}

bool equal(const TraceRecord* a, const TraceRecord* b) {
  return a != nullptr && b != nullptr && signature_of(*a) == signature_of(*b);
}

// What `odd` calls from `odd_ahead` on is what `usual` calls from `usual_ahead` on, as far as both
// go, and there is something to compare.
bool shifted(const TraceView& view, const Meeting& meeting, int odd, int odd_ahead, int usual,
             int usual_ahead) {
  for (std::int64_t i = 0;; ++i) {
    const TraceRecord* a = later(view, odd, meeting, odd_ahead + i);
    const TraceRecord* b = later(view, usual, meeting, usual_ahead + i);
    if (a == nullptr || b == nullptr) return i > 0;
    if (!equal(a, b)) return false;
  }
}

// What `odd` called used to come right behind what it should have called.
bool used_to_follow(const TraceView& view, const Meeting& meeting, int odd, int usual) {
  const TraceRecord* called = later(view, odd, meeting, 0);
  const TraceRecord* expected = later(view, usual, meeting, 0);
  for (std::int64_t back = 1;; ++back) {
    const TraceRecord* before = later(view, usual, meeting, -back);
    if (before == nullptr) return false;
    if (equal(before, expected)) return equal(later(view, usual, meeting, 1 - back), called);
  }
}

// A guess at what went wrong on `odd`, from what the ranks called before and after.
std::string guess(const TraceView& view, const Meeting& meeting, int odd, int usual) {
  if (meeting.is_message()) return {};
  const TraceRecord* called = later(view, odd, meeting, 0);
  const TraceRecord* expected = later(view, usual, meeting, 0);
  if (equal(called, later(view, usual, meeting, 1)) &&
      equal(expected, later(view, odd, meeting, 1))) {
    return str("; rank ", odd, " calls the two in the other order");
  }
  const bool skipped = shifted(view, meeting, odd, 0, usual, 1);
  const bool added = shifted(view, meeting, odd, 1, usual, 0);
  if (added && !skipped) return str("; it looks as if rank ", odd, " added a collective");
  if ((skipped && !added) || (!added && used_to_follow(view, meeting, odd, usual))) {
    return str("; it looks as if rank ", odd, " skipped ", describe(*expected));
  }
  return {};
}

using Sides = std::vector<std::vector<int>>;  // the largest first, then by rank

Sides sides_of(const TraceView::Visits& visits) {
  std::map<Signature, std::vector<int>> by_signature;
  for (const auto& [rank, visit] : visits) {
    by_signature[signature_of(*visit.record)].push_back(rank);
  }
  Sides sides;
  for (auto& [signature, ranks] : by_signature) sides.push_back(std::move(ranks));
  std::sort(sides.begin(), sides.end());
  std::stable_sort(sides.begin(), sides.end(),
                   [](const auto& a, const auto& b) { return a.size() > b.size(); });
  return sides;
}

std::string describe_mismatch(const TraceView& view, const Meeting& meeting,
                              const TraceView::Visits& visits, const Sides& sides) {
  std::string text;
  for (std::size_t i = 1; i < sides.size(); ++i) {
    text += str(i > 1 ? ", " : "", list(sides[i]), " called ",
                describe(*visits.at(sides[i].front()).record));
  }
  const bool one = sides.size() == 2 && sides[1].size() == 1;
  text += str(" as ", one ? "its " : "their ", place(meeting), ", where ", list(sides[0]),
              " called ", describe(*visits.at(sides[0].front()).record));
  return text + guess(view, meeting, sides[1].front(), sides[0].front());
}

std::optional<std::string> find_mismatch(const TraceView& view) {
  std::optional<std::string> found;
  double first = INFINITY;
  const Meeting* last = nullptr;
  for (const auto& [meeting, visits] : view.meetings()) {
    // Behind a group's first difference all is shifted. (Meetings are ordered by group, then by
    // number.)
    if (last != nullptr && last->group == meeting.group && last->from == meeting.from &&
        last->to == meeting.to) {
      continue;
    }
    const Sides sides = sides_of(visits);
    if (sides.size() < 2) continue;
    last = &meeting;
    if (const double at = earliest(visits); !found || at < first) {
      first = at;
      found = describe_mismatch(view, meeting, visits, sides);
    }
  }
  return found;
}

// ---- Ranks that wait.

// A rank in a collective, and those who have not come to it.
struct Wait {
  int rank;
  const Visit* at;
  std::vector<int> missing;
};

std::vector<Wait> waits_of(const TraceView& view) {
  std::vector<Wait> waits;
  for (const auto& [rank, dump] : view.dumps()) {
    const Visit* at = view.stuck(rank);
    if (at == nullptr) continue;
    Wait wait{rank, at, {}};
    for (const int partner : TraceView::partners(at->meeting, rank)) {
      if (!view.reached(partner, at->meeting)) wait.missing.push_back(partner);
    }
    if (!wait.missing.empty()) waits.push_back(std::move(wait));
  }
  return waits;
}

bool waits_for(const Wait& wait, int rank) {
  return std::find(wait.missing.begin(), wait.missing.end(), rank) != wait.missing.end();
}

std::optional<std::string> find_crossing(const std::vector<Wait>& waits) {
  for (const Wait& a : waits) {
    for (const Wait& b : waits) {
      if (a.rank >= b.rank || !waits_for(a, b.rank) || !waits_for(b, a.rank)) continue;
      const auto where = [](const Wait& wait) {
        return str("rank ", wait.rank, " is in ", describe(*wait.at->record), ", its ",
                   place(wait.at->meeting));
      };
      const bool groups = a.at->meeting.group != b.at->meeting.group;
      return str(groups ? str("the ranks use ", quoted_group(a.at->meeting), " and ",
                              quoted_group(b.at->meeting), " in different orders: ")
                        : "two ranks wait for each other: ",
                 where(a), ", while ", where(b));
    }
  }
  return std::nullopt;
}

// How long before the waiting ranks gave up (or wrote their dumps) `rank` did something last.
double idle_ns(const TraceView& view, const std::vector<const Wait*>& waiting, const Visit& last) {
  double end = 0;
  for (const Wait* wait : waiting) {
    const TraceRecord& record = *wait->at->record;
    end = std::max(end, record.state == TraceState::failed ? record.finished
                                                           : view.dumps().at(wait->rank).written);
  }
  return end - last.record->finished;
}

std::string whereabouts(const TraceView& view, int rank, const Meeting& meeting,
                        const std::vector<const Wait*>& waiting, const std::string& whose) {
  const TraceDump& dump = view.dumps().at(rank);
  std::string text;
  if (const Visit* last = view.last_finished(rank)) {
    text = str("; ", whose, " last was ", describe(*last->record), ", the ", place(last->meeting),
               ", ", seconds(idle_ns(view, waiting, *last)), " before");
  } else {
    text = str("; ", whose, " dump shows no collective that it finished");
  }
  const TraceGroup* group = view.group(rank, meeting.group);
  if (dump.exception) {
    text += str(", and then it failed: ", printable(*dump.exception));
  } else if (group != nullptr && group->left) {
    text += ", and then it left the group";
  }
  return text;
}

// The job was only looked at: nobody has given up, and nobody has waited long.
bool may_be_running(const TraceView& view, const std::vector<const Wait*>& waiting, int idle) {
  const auto dump = view.dumps().find(idle);
  if (dump == view.dumps().end() || dump->second.exception) return false;
  for (const Wait* wait : waiting) {
    const TraceRecord& record = *wait->at->record;
    const TraceGroup* group = view.group(idle, wait->at->meeting.group);
    if (record.state == TraceState::failed || (group != nullptr && group->left)) return false;
    const double since = record.state == TraceState::started ? record.started : record.enqueued;
    if (view.dumps().at(wait->rank).written - since >= kRunningNs) return false;
  }
  return true;
}

Verdict describe_absence(const TraceView& view, const std::vector<Wait>& waits) {
  // Somebody is waited for who waits for nobody: follow any wait to its end.
  const Wait* wait = &waits.front();
  for (std::size_t hops = 0; hops < waits.size(); ++hops) {
    const auto next = std::find_if(waits.begin(), waits.end(),
                                   [&](const Wait& other) { return waits_for(*wait, other.rank); });
    const bool ends = std::any_of(wait->missing.begin(), wait->missing.end(), [&](int rank) {
      return std::none_of(waits.begin(), waits.end(),
                          [&](const Wait& other) { return other.rank == rank; });
    });
    if (ends || next == waits.end()) break;
    wait = &*next;
  }
  const Meeting& meeting = wait->at->meeting;
  std::vector<const Wait*> waiting;
  std::vector<int> waiting_ranks;
  for (const Wait& other : waits) {
    if (other.at->meeting != meeting) continue;
    waiting.push_back(&other);
    waiting_ranks.push_back(other.rank);
  }
  std::vector<int> silent;  // no dump
  std::vector<int> absent;
  for (const int rank : wait->missing) {
    (view.dumps().contains(rank) ? absent : silent).push_back(rank);
  }
  const std::string what = describe(*wait->at->record);
  const bool wait_alone = waiting_ranks.size() == 1;
  if (!silent.empty()) {
    return {true, str("there is no dump of ", list(silent), ", for which ", list(waiting_ranks),
                      wait_alone ? " waits in " : " wait in ", what, ", the ", place(meeting),
                      "; a rank that was killed, or is stopped, writes none")};
  }
  const int first = absent.front();
  const std::string last = whereabouts(view, first, meeting, waiting,
                                       absent.size() == 1 ? "its" : str("rank ", first, "'s"));
  if (may_be_running(view, waiting, first)) {
    return {false,
            str("no desync: ", list(absent), absent.size() == 1 ? " is" : " are", " on the way to ",
                what, ", the ", place(meeting), ", as in any job that runs", last)};
  }
  if (absent.size() > waiting_ranks.size()) {
    return {true, str(list(waiting_ranks), " called ", what, " as ", wait_alone ? "its " : "their ",
                      place(meeting), ", to which ", list(absent), " have not come", last)};
  }
  return {true, str(list(absent), absent.size() == 1 ? " has" : " have", " not come to ", what,
                    ", the ", place(meeting), ", where ", list(waiting_ranks),
                    wait_alone ? " waits" : " wait", last)};
}

// ---- Nothing of the kind.

std::string describe_agreement(const TraceView& view) {
  std::string text = str("no desync: ", list({view.world().begin(), view.world().end()}),
                         " called the same collectives");
  const Visit* last = nullptr;
  const TraceGroup* failed = nullptr;
  std::pair<int, std::string> exception{-1, {}};
  for (const auto& [rank, dump] : view.dumps()) {
    const Visit* finished = view.last_finished(rank);
    if (last == nullptr) last = finished;
    for (const auto& [id, group] : dump.groups) {
      if (failed == nullptr && group.failure) failed = &group;
    }
    if (dump.exception && exception.first < 0) exception = {rank, *dump.exception};
  }
  if (last != nullptr) {
    text += str("; the last was ", describe(*last->record), ", the ", place(last->meeting));
  }
  if (exception.first >= 0) {
    text += str("; rank ", exception.first, " failed: ", printable(exception.second));
  } else if (failed != nullptr) {
    text += str("; group '", printable(failed->name), "' failed: ", printable(*failed->failure));
  }
  return text;
}

Verdict verdict_of(const TraceView& view) {
  if (const auto mismatch = find_mismatch(view)) return {true, *mismatch};
  const std::vector<Wait> waits = waits_of(view);
  if (const auto crossing = find_crossing(waits)) return {true, *crossing};
  if (!waits.empty()) return describe_absence(view, waits);
  return {false, describe_agreement(view)};
}

}  // namespace

Verdict explain(const std::map<int, TraceDump>& dumps) {
  const TraceView view(dumps);
  Verdict verdict = verdict_of(view);
  const std::vector<int> missing = view.without_dump();
  if (!missing.empty() && verdict.sentence.find("there is no dump") == std::string::npos) {
    verdict.sentence += str("; there is no dump of ", list(missing));
  }
  return verdict;
}

}  // namespace cohort::tools
