#include "comm/gloo/member.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::comm::gloo {
namespace {

// How long an unwinding rank's text is waited for before a general one must do.
constexpr Milliseconds kTextGrace{500};
// A broken connection is mostly the echo of a failure that is being told: the cause is waited for.
constexpr Milliseconds kVerdict{2'000};
// For the peers to say where they are, after the deadline; a stopped one never does.
constexpr Milliseconds kAnswer{300};
// Between questions while a collective waits.
constexpr Milliseconds kAsk{200};
// A leaving rank's last bytes are on their way to peers that all have come to the collective.
constexpr Milliseconds kFarewell{5'000};

bool is_pair(const Call& call) {
  return call.operation == Operation::send || call.operation == Operation::recv;
}

struct Leaving {
  std::uint64_t sequence;
  std::uint64_t messages;
};

struct Here {
  Position position;
  std::uint64_t begun;
};

struct FailureHead {
  FailureKind kind;
  std::int32_t origin;
};

template <typename T>
std::string packed(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// False for a word that is no word of ours.
template <typename T>
bool unpack(const std::string& body, T& value) {
  if (body.size() < sizeof(value)) return false;
  std::memcpy(&value, body.data(), sizeof(value));
  return true;
}

}  // namespace

Member::Member(std::shared_ptr<Control> control, std::unique_ptr<Mesh> mesh, std::uint64_t id,
               std::vector<int> first_ranks, int rank, std::string group)
    : control_(std::move(control)),
      mesh_(std::move(mesh)),
      id_(id),
      first_ranks_(std::move(first_ranks)),
      rank_(rank),
      size_(static_cast<int>(first_ranks_.size())),
      group_(std::move(group)),
      peers_(static_cast<std::size_t>(size_)) {}

Member::~Member() {
  leave();
}

void Member::connect(Milliseconds timeout) {
  control_->add(id_, this);
  const Call call{.operation = Operation::split, .timeout = timeout};
  begin(call, 0);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    control_->say(first_ranks_[static_cast<std::size_t>(r)],
                  {Word::Kind::addresses, id_, mesh_->address_for(r)});
  }
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    show_awaited(r);
    std::string address;
    {
      std::unique_lock lock(mutex_);
      while (!failed() && peer(r).address.empty()) changed_.wait_for(lock, kAsk);
      address = peer(r).address;
    }
    post(r, [&] { mesh_->connect(r, address); });
  }
  check_running();
  end(/*done=*/true);
}

void Member::on_failure(std::function<void(const std::string&)> told) {
  const std::lock_guard lock(mutex_);
  told_ = std::move(told);
}

std::vector<int> Member::everybody() const {
  std::vector<int> ranks(static_cast<std::size_t>(size_));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

int Member::rank_of(int first_rank) const {
  const auto found = std::find(first_ranks_.begin(), first_ranks_.end(), first_rank);
  return found == first_ranks_.end() ? -1 : static_cast<int>(found - first_ranks_.begin());
}

void Member::begin(const Call& call, std::uint64_t sequence) {
  if (const std::exception_ptr over = failure(call.operation)) std::rethrow_exception(over);
  std::optional<Failure> vain;
  {
    const std::lock_guard lock(mutex_);
    call_ = call;
    sequence_ = sequence;
    deadline_ = Deadline::after(call.timeout);
    asked_ = Clock::now();
    overdue_ = false;
    if (call.operation == Operation::recv) ++peer(call.peer).expected;
    vain = hopeless();
  }
  // Point-to-point calls need only one peer, so they show no sequence that others could miss.
  control_->set_position({id_, is_pair(call) ? 0 : sequence, call.operation, -1});
  if (vain) fail(vain->kind, vain->origin, vain->reason);
}

void Member::end(bool done) {
  control_->set_position({});
  const std::lock_guard lock(mutex_);
  previous_ = *call_;
  previous_.stream = {};
  previous_sequence_ = sequence_;
  if (done && !is_pair(*call_)) completed_ = sequence_;
  call_.reset();
  for (int r = 0; r < size_; ++r) {
    if (!peer(r).wants_answer || peer(r).left_at > completed_) continue;
    peer(r).wants_answer = false;
    control_->say(first_ranks_[static_cast<std::size_t>(r)], {Word::Kind::received, id_});
  }
}

void Member::await(Buffer& buffer, int peer, bool receives) {
  check_running();
  show_awaited(peer);
  {
    const std::lock_guard lock(mutex_);
    if (!failed()) {
      waiting_ = &buffer;
      waiting_receives_ = receives;
    }
  }
  check_running();
  std::string trouble;
  try {
    receives ? buffer.waitRecv() : buffer.waitSend();
  } catch (const std::exception& error) {
    trouble = error.what();
  }
  {
    const std::lock_guard lock(mutex_);
    waiting_ = nullptr;
  }
  if (!trouble.empty()) {
    fail_unless_told(peer,
                     str("rank ", rank_, " lost its connection to rank ", peer, ": ", trouble));
  }
  check_running();
}

void Member::show_awaited(int peer) {
  {
    const std::lock_guard lock(mutex_);
    awaited_ = peer;
  }
  control_->set_awaited(peer < 0 ? -1 : first_ranks_[static_cast<std::size_t>(peer)]);
}

void Member::check_running() {
  if (!failed()) [[likely]] {
    return;
  }
  Operation operation = Operation::barrier;
  {
    const std::lock_guard lock(mutex_);
    if (call_) operation = call_->operation;
  }
  std::rethrow_exception(failure(operation));
}

std::optional<Failure> Member::hopeless() const {
  for (int r = 0; r < size_; ++r) {
    const Peer& p = peer(r);
    if (!p.left && !p.death.empty()) {
      return Failure{FailureKind::peer, r,
                     str("rank ", r, " died: ", p.death, " without leaving the group, while rank ",
                         rank_, " was in ", describe(*call_))};
    }
    bool needed = p.left && p.left_at < sequence_;
    if (is_pair(*call_)) {
      needed = p.left && r == call_->peer &&
               (call_->operation == Operation::send || p.left_messages < p.expected);
    }
    if (needed) {
      return Failure{FailureKind::peer, r,
                     str("rank ", r, " left the group, while rank ", rank_, " waits for it in ",
                         describe(*call_))};
    }
  }
  return std::nullopt;
}

bool Member::record(const Failure& failure, bool tells) noexcept {
  try {
    {
      const std::lock_guard lock(mutex_);
      // The rank whose text the others wait for may still deliver it.
      if (failure_ || (unwinding_ >= 0 && failure.origin != unwinding_)) return false;
      failure_ = failure;
      failed_.store(true);
    }
    close_and_wake(failure.reason);
    if (tells) tell(Word::Kind::failure, failure);
    return true;
  } catch (const std::exception&) {
    return false;  // no memory for the text
  }
}

void Member::close_and_wake(const std::string& reason) noexcept {
  mesh_->close();
  std::function<void(const std::string&)> told;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_ != nullptr)
      waiting_receives_ ? waiting_->abortWaitRecv() : waiting_->abortWaitSend();
    told = told_;
  }
  changed_.notify_all();
  if (told) told(reason);
}

void Member::tell(Word::Kind kind, const Failure& failure) noexcept {
  // A message is a few hundred bytes; longer ones are cut.
  constexpr std::size_t kLongest = 8'000;
  const std::string body =
      packed(FailureHead{failure.kind, failure.origin}) + failure.reason.substr(0, kLongest);
  for (const int first : first_ranks_) control_->say(first, {kind, id_, body});
}

void Member::fail(FailureKind kind, int origin, const std::string& reason) {
  record({kind, origin, reason}, /*tells=*/true);
  check_running();
  throw Error(reason);  // only without memory to record anything
}

void Member::fail_unless_told(int origin, const std::string& reason) {
  {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, kVerdict, [&] { return failed(); });
  }
  check_running();
  fail(FailureKind::peer, origin, reason);
}

std::exception_ptr Member::failure(Operation operation) const {
  if (!failed()) return nullptr;
  std::unique_lock lock(mutex_);
  // The text is a moment away, unless its writer dies first.
  changed_.wait_for(lock, kTextGrace, [&] { return failure_.has_value(); });
  const Failure told = failure_.value_or(
      Failure{FailureKind::peer, unwinding_,
              str("rank ", unwinding_, " failed: an exception left the scope of its group")});
  return make_error(told, operation, {rank_, size_, group_, sequence_});
}

void Member::abort(const std::string& reason) noexcept {
  record({FailureKind::peer, rank_, str("rank ", rank_, " failed: ", reason)}, /*tells=*/true);
}

void Member::abort_text_follows() noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (failure_ || unwinding_ >= 0) return;
    unwinding_ = rank_;
    failed_.store(true);
  }
  close_and_wake("an exception left the scope of its group");
  tell(Word::Kind::text_follows, {FailureKind::peer, rank_, {}});
}

void Member::count_message(int peer_rank) {
  const std::lock_guard lock(mutex_);
  ++peer(peer_rank).sent;
}

void Member::leave() noexcept {
  if (left_.exchange(true)) return;
  {
    std::unique_lock lock(mutex_);
    if (!failed()) {
      for (int r = 0; r < size_; ++r) {
        control_->say(first_ranks_[static_cast<std::size_t>(r)],
                      {Word::Kind::leaving, id_, packed(Leaving{completed_, peer(r).sent})});
      }
      changed_.wait_for(lock, kFarewell, [&] {
        if (failed()) return true;
        for (int r = 0; r < size_; ++r) {
          const Peer& p = peer(r);
          const bool has_all = p.received || (p.left && p.left_at >= completed_);
          if (r != rank_ && !has_all && p.death.empty()) return false;
        }
        return true;
      });
    }
  }
  control_->remove(id_);
}

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
      peer(r).received = true;
      return changed_.notify_all();
    }
    case Word::Kind::where:
      return hear_where(r);
    case Word::Kind::here:
      return hear_here(r, word);
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
    p.left_messages = leaving.messages;
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
  if (vain) record(*vain, /*tells=*/true);
}

bool Member::tick() {
  std::optional<Failure> late;
  {
    const std::lock_guard lock(mutex_);
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
  // This group first: the peer leaves the other one as soon as that has failed, and must not find
  // this one running.
  record({FailureKind::mismatch, rank, reason}, /*tells=*/true);
  other->record({FailureKind::mismatch, other->rank_, reason}, /*tells=*/true);
}

}  // namespace cohort::comm::gloo
