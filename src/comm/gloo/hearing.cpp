// What a member hears from its peers, by the control's thread: failures, deaths, farewells, and
// where they are when a collective waits too long.

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"
#include "comm/gloo/member.h"
#include "comm/gloo/words.h"

namespace cohort::comm::gloo {
namespace {

// For the peers to say where they are, after the deadline; a stopped one never does.
constexpr Milliseconds kAnswer{300};
// Between questions while a collective waits.
constexpr Milliseconds kAsk{200};

}  // namespace

void Member::heard(int first_rank, const Word& word) {
  const int r = rank_of(first_rank);
  if (r < 0) return;
  switch (word.kind) {
    case Word::Kind::failure:
      return hear_failure(word);
    case Word::Kind::text_follows: {
      {
        const std::lock_guard lock(mutex_);
        if (failure_ || unwinding_ >= 0) return;
        unwinding_ = r;
        failed_.store(true);
      }
      return close_and_wake(str("rank ", r, " is unwinding"));
    }
    case Word::Kind::leaving:
      return hear_leaving(r, word);
    case Word::Kind::received: {
      const std::lock_guard lock(mutex_);
      peer(r).has_all = true;
      return changed_.notify_all();
    }
    case Word::Kind::where:
      return hear_where(r);
    case Word::Kind::here:
      return hear_here(r, word);
    case Word::Kind::settled: {
      {
        const std::lock_guard lock(mutex_);
        peer(r).settled = true;
      }
      changed_.notify_all();
      if (failed()) close_settled(/*all=*/false);
      return;
    }
    case Word::Kind::addresses: {
      const std::lock_guard lock(mutex_);
      peer(r).address = word.body;
      return changed_.notify_all();
    }
    case Word::Kind::goodbye:
      break;  // the control's own
  }
}

void Member::hear_failure(const Word& word) {
  FailureHead head{};
  if (!unpack(word.body, head)) return;
  record({head.kind, head.origin, word.body.substr(sizeof(head))}, /*tells=*/false);
}

void Member::hear_leaving(int rank, const Word& word) {
  Leaving leaving{};
  if (!unpack(word.body, leaving)) return;
  std::optional<Failure> vain;
  {
    const std::lock_guard lock(mutex_);
    Peer& p = peer(rank);
    p.left = true;
    p.left_at = leaving.sequence;
    p.left_sent = leaving.sent;
    p.left_received = leaving.received;
    p.wants_answer = completed_ < leaving.sequence;
    if (!p.wants_answer) {
      control_->say(first_ranks_[static_cast<std::size_t>(rank)], {Word::Kind::received, id_});
    }
    if (call_ && !failed()) vain = hopeless();
  }
  changed_.notify_all();
  if (vain) record(*vain, /*tells=*/true);
}

void Member::hear_where(int rank) {
  // In this order: a call that has been left for the shown one has begun, too.
  Here here{control_->position(), 0};
  {
    const std::lock_guard lock(mutex_);
    here.begun = sequence_;
  }
  control_->say(first_ranks_[static_cast<std::size_t>(rank)],
                {Word::Kind::here, id_, packed(here)});
}

void Member::hear_here(int rank, const Word& word) {
  Here here{};
  if (!unpack(word.body, here)) return;
  {
    const std::lock_guard lock(mutex_);
    peer(rank).position = here.position;
    peer(rank).begun = here.begun;
    peer(rank).answered = true;
    if (!call_ || failed() || is_pair(*call_)) return;
  }
  check_crossed(rank);
}

void Member::died(int first_rank, const std::string& how) {
  const int r = rank_of(first_rank);
  if (r < 0) return;
  std::optional<Failure> vain;
  {
    const std::lock_guard lock(mutex_);
    peer(r).death = how;
    if (call_ && !failed()) vain = hopeless();
  }
  changed_.notify_all();
  if (failed()) close_settled(/*all=*/false);
  if (vain) record(*vain, /*tells=*/true);
}

bool Member::tick() {
  std::optional<Failure> late;
  {
    std::unique_lock lock(mutex_);
    if (failed() && failed_at_ != Clock::time_point{} && Clock::now() - failed_at_ > kSettling) {
      lock.unlock();
      close_settled(/*all=*/true);
      return false;
    }
    if (!call_ || failed()) return false;
    const auto now = Clock::now();
    if (!overdue_) {
      overdue_ = deadline_.passed();
      if (overdue_ || now - asked_ >= kAsk) ask_all();
      return overdue_;
    }
    const bool all = std::all_of(peers_.begin(), peers_.end(), [&](const Peer& p) {
      return p.answered || &p == &peer(rank_) || p.left;
    });
    if (!all && now - asked_ < kAnswer) return true;
    late = overdue();
  }
  record(*late, /*tells=*/true);
  return false;
}

void Member::ask_all() {
  asked_ = Clock::now();
  for (int r = 0; r < size_; ++r) {
    peer(r).answered = false;
    control_->say(first_ranks_[static_cast<std::size_t>(r)], {Word::Kind::where, id_});
  }
}

// Those that have not come to this collective. If all have, somebody in it does not go on: whom
// this rank waits for, or whom that one waits for in its turn.
std::vector<int> Member::culprits() const {
  std::vector<int> missing;
  if (!is_pair(*call_)) {
    for (int r = 0; r < size_; ++r) {
      if (r != rank_ && (!peer(r).answered || peer(r).begun < sequence_)) missing.push_back(r);
    }
    if (!missing.empty()) return missing;
  }
  int culprit = is_pair(*call_) ? call_->peer : awaited_;
  for (int hops = 0; hops < size_ && culprit >= 0; ++hops) {
    const Peer& p = peer(culprit);
    if (!p.answered || !p.position || p.position->group != id_) break;
    const int next = rank_of(p.position->awaited);
    if (next < 0 || next == rank_) break;
    culprit = next;
  }
  return {culprit < 0 ? (rank_ + 1) % size_ : culprit};
}

std::string Member::whereabouts(int rank) const {
  const Peer& p = peer(rank);
  if (p.left) return str("rank ", rank, " has left the group");
  if (!p.answered || !p.position) return str("rank ", rank, " does not answer");
  if (p.position->group == 0) return str("rank ", rank, " is in no collective");
  if (p.position->group == id_) {
    return str("rank ", rank, " is in ", p.position->operation, " on this group");
  }
  const auto* other = dynamic_cast<const Member*>(control_->find(p.position->group));
  return str("rank ", rank, " is in ", p.position->operation,
             other ? str(" on group '", other->group(), "'") : " on a group without this rank");
}

Failure Member::overdue() const {
  const std::vector<int> missing = culprits();
  std::string where;
  for (const int r : missing) where += (where.empty() ? "" : ", ") + whereabouts(r);
  return {FailureKind::timeout, missing.front(),
          str(list_ranks(missing), missing.size() == 1 ? " was" : " were", " missing after ",
              call_->timeout.count(), " ms of ", describe(*call_), " on rank ", rank_, "; ", where,
              "; before that, all ",
              previous_sequence_ == 0
                  ? "had only formed the group"
                  : str("finished ", describe(previous_), " (sequence ", previous_sequence_, ')'))};
}

void Member::check_crossed(int rank) {
  Position theirs;
  std::string mine;
  {
    const std::lock_guard lock(mutex_);
    theirs = *peer(rank).position;
    // A peer that has come to this collective has gone on since.
    if (!call_ || peer(rank).begun >= sequence_) return;
    mine = describe(*call_);
  }
  if (theirs.group == 0 || theirs.group == id_ || theirs.sequence == 0) return;
  auto* other = dynamic_cast<Member*>(control_->find(theirs.group));
  if (other == nullptr) return;
  {
    // It waits there for this rank only if this rank has not been there.
    const std::lock_guard lock(other->mutex_);
    if (other->sequence_ >= theirs.sequence) return;
  }
  const std::string reason =
      str("the ranks use two groups in different orders: rank ", rank_, " is in ", mine,
          " on group '", group_, "', while rank ", rank, " is in ", theirs.operation, " (sequence ",
          theirs.sequence, ") on group '", other->group_, "', and each waits for the other");
  // The other group first, and silently: this rank's queue goes on to it as soon as this one has
  // failed, and must not find it running. The peer's queue does the same the other way round, so it
  // hears of this group first.
  const Failure others{FailureKind::mismatch, other->rank_, reason};
  const bool news = other->record(others, /*tells=*/false);
  record({FailureKind::mismatch, rank, reason}, /*tells=*/true);
  if (news) other->tell(Word::Kind::failure, others);
}

}  // namespace cohort::comm::gloo
