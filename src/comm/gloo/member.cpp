#include "comm/gloo/member.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/core/error.h"
#include "comm/gloo/words.h"

namespace cohort::comm::gloo {
namespace {

// How long an unwinding rank's text is waited for before a general one must do.
constexpr Milliseconds kTextGrace{500};
// A broken connection is mostly the echo of a failure that is being told: the cause is waited for.
constexpr Milliseconds kVerdict{2'000};
// A leaving rank's last bytes are on their way to peers that all have come to the collective.
constexpr Milliseconds kFarewell{5'000};

// Between looks at a failure while words of a new group are awaited.
constexpr Milliseconds kLook{20};

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
  std::vector<bool> told(static_cast<std::size_t>(size_));
  const auto tell_settled = [&](int r) {
    if (r == rank_ || told[static_cast<std::size_t>(r)]) return;
    told[static_cast<std::size_t>(r)] = true;
    control_->say(first_ranks_[static_cast<std::size_t>(r)], {Word::Kind::settled, id_});
  };
  try {
    connect_all(timeout, tell_settled);
  } catch (...) {
    for (int r = 0; r < size_; ++r) tell_settled(r);
    throw;
  }
}

void Member::connect_all(Milliseconds timeout, const std::function<void(int)>& connected) {
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
      while (!failed() && peer(r).address.empty()) changed_.wait_for(lock, kLook);
      address = peer(r).address;
    }
    post(r, [&] { mesh_->connect(r, address); });
    connected(r);
  }
  // The others' ends too, so that from now on a connection may be closed at any time.
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    show_awaited(r);
    std::unique_lock lock(mutex_);
    while (!failed() && !peer(r).settled) changed_.wait_for(lock, kLook);
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
    if (call.operation == Operation::recv) ++peer(call.peer).received;
    if (call.operation == Operation::send) ++peer(call.peer).sent;
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
  show_awaited(peer);
  bool running = false;
  {
    const std::lock_guard lock(mutex_);
    running = !failed();
    if (running) {
      waiting_ = &buffer;
      waiting_receives_ = receives;
    }
  }
  // From here on a failure wakes the wait.
  if (!running) check_running();
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
               (call_->operation == Operation::send ? p.left_received < p.sent
                                                    : p.left_sent < p.received);
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

void Member::close_settled(bool all) noexcept {
  std::vector<int> closing;
  {
    const std::lock_guard lock(mutex_);
    for (int r = 0; r < size_; ++r) {
      Peer& p = peer(r);
      if (r == rank_ || p.closed || !(all || p.settled || !p.death.empty())) continue;
      p.closed = true;
      closing.push_back(r);
    }
  }
  for (const int r : closing) mesh_->close(r);
  changed_.notify_all();
}

void Member::close_and_wake(const std::string& reason) noexcept {
  {
    const std::lock_guard lock(mutex_);
    failed_at_ = Clock::now();
  }
  close_settled(/*all=*/false);
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

void Member::leave() noexcept {
  if (left_.exchange(true)) return;
  {
    std::unique_lock lock(mutex_);
    if (failed()) {
      // The mesh goes soon.
      changed_.wait_for(lock, kSettling, [&] {
        for (int r = 0; r < size_; ++r) {
          if (r != rank_ && !peer(r).closed) return false;
        }
        return true;
      });
    } else {
      for (int r = 0; r < size_; ++r) {
        control_->say(first_ranks_[static_cast<std::size_t>(r)],
                      {Word::Kind::leaving, id_,
                       packed(Leaving{completed_, peer(r).sent, peer(r).received})});
      }
      changed_.wait_for(lock, kFarewell, [&] {
        if (failed()) return true;
        for (int r = 0; r < size_; ++r) {
          const Peer& p = peer(r);
          const bool has_all = p.has_all || (p.left && p.left_at >= completed_);
          if (r != rank_ && !has_all && p.death.empty()) return false;
        }
        return true;
      });
    }
  }
  control_->remove(id_);
}

}  // namespace cohort::comm::gloo
