#include "comm/shm/member.h"

#include <sched.h>

#include <cstring>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::comm::shm {
namespace {

// A waiter sleeps, which costs two switches of some 5 microseconds each. It first spins about that
// long where every rank has a core to itself and one is left over; else the spinning would keep the
// awaited rank from running, and only a wait that is nearly over is worth it.
std::chrono::nanoseconds spin_time(int ranks) {
  cpu_set_t cores;
  CPU_ZERO(&cores);
  sched_getaffinity(0, sizeof(cores), &cores);
  return std::chrono::nanoseconds(CPU_COUNT(&cores) > ranks ? 10'000 : 1'000);
}

// How long an unwinding rank's text is waited for before a general one must do.
constexpr Milliseconds kTextGrace{500};

bool is_pair(const Call& call) {
  return call.operation == Operation::send || call.operation == Operation::recv;
}

constexpr std::uint32_t unwinding(int rank) {
  return FailureRecord::text_follows + static_cast<std::uint32_t>(rank);
}

}  // namespace

Member::Member(std::shared_ptr<Mapping> segment, std::shared_ptr<Link> link,
               std::shared_ptr<Family> family, std::vector<int> family_ranks, int rank,
               std::string group)
    : segment_(std::move(segment)),
      link_(std::move(link)),
      family_(std::move(family)),
      family_ranks_(std::move(family_ranks)),
      rank_(rank),
      size_(static_cast<int>(family_ranks_.size())),
      group_(std::move(group)),
      layout_(size_),
      id_(header().id),
      spin_(spin_time(size_)) {}

void Member::begin(const Call& call, std::uint64_t sequence) {
  if (const std::exception_ptr over = failure(call.operation)) std::rethrow_exception(over);
  sequence_.store(sequence, std::memory_order_relaxed);
  call_ = &call;
  deadline_ = Deadline::after(call.timeout);
  RankSlot& shown = family_->slot(family_ranks_[static_cast<std::size_t>(rank_)]);
  // Point-to-point calls need only one peer, so they show no sequence that others could miss.
  const bool pair = is_pair(call);
  shown.active_operation.store(static_cast<std::uint32_t>(call.operation),
                               std::memory_order_relaxed);
  shown.active_sequence.store(pair ? 0 : sequence, std::memory_order_relaxed);
  shown.active_group.store(id_, std::memory_order_release);
}

void Member::end() {
  family_->slot(family_ranks_[static_cast<std::size_t>(rank_)])
      .active_group.store(0, std::memory_order_release);
  previous_ = *call_;
  previous_.stream = {};
  previous_sequence_ = sequence_.load(std::memory_order_relaxed);
  call_ = nullptr;
}

void Member::await(std::uint32_t step) {
  const auto reached = [step](std::uint32_t value) {
    return static_cast<std::int32_t>(value - step) >= 0;
  };
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_) await_word(slot(peer).step, peer, reached);
  }
}

void Member::check_running() {
  if (!failed()) [[likely]] {
    return;
  }
  std::rethrow_exception(failure(call_ ? call_->operation : Operation::barrier));
}

void Member::look_around(const std::vector<int>& missing) {
  for (int peer = 0; peer < size_; ++peer) {
    // Any dead rank, not only the awaited one: that one may be waiting for it in its turn.
    if (peer == rank_ || !link_->gone(peer)) continue;
    if (slot(peer).left.load(std::memory_order_acquire) != 0) continue;
    fail(FailureKind::peer, peer,
         str("rank ", peer, " died: its process ended without leaving the group, while rank ",
             rank_, " was in ", describe(*call_)));
  }
  for (const int peer : missing) check_crossed(peer);
  if (deadline_.passed()) time_out(missing);
}

void Member::check_departed(int peer) {
  fail(FailureKind::peer, peer,
       str("rank ", peer, " left the group, while rank ", rank_, " waits for it in ",
           describe(*call_)));
}

void Member::check_crossed(int peer) {
  const RankSlot& shown = family_->slot(family_ranks_[static_cast<std::size_t>(peer)]);
  const std::uint64_t other_id = shown.active_group.load(std::memory_order_acquire);
  const std::uint64_t other_sequence = shown.active_sequence.load(std::memory_order_relaxed);
  const auto other_operation =
      static_cast<Operation>(shown.active_operation.load(std::memory_order_relaxed));
  if (other_id == 0 || other_id == id_ || other_sequence == 0) return;
  if (is_pair(*call_)) return;
  const std::shared_ptr<Member> other = family_->find(other_id);
  // It waits there for this rank only if this rank has not been there.
  if (!other || other->sequence_.load(std::memory_order_relaxed) >= other_sequence) return;
  // A peer that has done all steps of this group that this rank has done has been here and gone on.
  if (!behind(peer, step_)) return;
  // The three words were read one by one; they mean one call only if the group is still the same.
  if (shown.active_group.load(std::memory_order_acquire) != other_id) return;
  const std::string reason =
      str("the ranks use two groups in different orders: rank ", rank_, " is in ", describe(*call_),
          " on group '", group_, "', while rank ", peer, " is in ", other_operation, " (sequence ",
          other_sequence, ") on group '", other->group_, "', and each waits for the other");
  // This group first: the peer leaves the other one as soon as that has failed, and must not find
  // this one running.
  record_failure(FailureKind::mismatch, peer, reason);
  other->record_failure(FailureKind::mismatch, other->rank_, reason);
  check_running();
}

std::string Member::describe_whereabouts(int peer) const {
  const RankSlot& shown = family_->slot(family_ranks_[static_cast<std::size_t>(peer)]);
  const std::uint64_t id = shown.active_group.load(std::memory_order_acquire);
  if (id == 0) return str("rank ", peer, " is in no collective");
  const auto operation =
      static_cast<Operation>(shown.active_operation.load(std::memory_order_relaxed));
  const std::shared_ptr<Member> other = id == id_ ? nullptr : family_->find(id);
  return str("rank ", peer, " is in ", operation,
             id == id_ ? str(" on this group")
             : other   ? str(" on group '", other->group_, "'")
                       : str(" on a group without this rank"));
}

std::vector<int> Member::missing_at(std::uint32_t step) const {
  std::vector<int> missing;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer != rank_ && behind(peer, step)) missing.push_back(peer);
  }
  return missing;
}

void Member::time_out(const std::vector<int>& awaited) {
  std::vector<int> missing = is_pair(*call_) ? awaited : missing_at(step_);
  if (missing.empty()) missing = awaited;
  std::string where;
  for (const int peer : missing) where += (where.empty() ? "" : ", ") + describe_whereabouts(peer);
  fail(FailureKind::timeout, missing.front(),
       str(list_ranks(missing), missing.size() == 1 ? " was" : " were", " missing after ",
           call_->timeout.count(), " ms of ", describe(*call_), " on rank ", rank_, "; ", where,
           "; before that, all ",
           previous_sequence_ == 0
               ? "had only formed the group"
               : str("finished ", describe(previous_), " (sequence ", previous_sequence_, ')')));
}

void Member::record_failure(FailureKind kind, int origin, const std::string& reason) noexcept {
  FailureRecord& failure = header().failure;
  std::uint32_t expected = FailureRecord::running;
  if (!failure.state.value.compare_exchange_strong(expected, FailureRecord::writing)) {
    // The rank whose text others are waiting for may still deliver it.
    if (expected != unwinding(rank_) || origin != rank_ ||
        !failure.state.value.compare_exchange_strong(expected, FailureRecord::writing)) {
      return;
    }
  }
  failure.origin.store(origin);
  failure.kind.store(kind);
  const std::size_t length = reason.copy(failure.reason, sizeof(failure.reason) - 1);
  failure.reason[length] = '\0';
  failure.state.publish(FailureRecord::complete);
  wake_everybody();
}

void Member::fail(FailureKind kind, int origin, const std::string& reason) {
  record_failure(kind, origin, reason);
  std::rethrow_exception(failure(call_ ? call_->operation : Operation::barrier));
}

void Member::abort(const std::string& reason) noexcept {
  try {
    record_failure(FailureKind::peer, rank_, str("rank ", rank_, " failed: ", reason));
  } catch (...) {
    record_failure(FailureKind::peer, rank_, {});  // no memory for the text
  }
}

void Member::abort_text_follows() noexcept {
  FailureRecord& failure = header().failure;
  std::uint32_t expected = FailureRecord::running;
  if (failure.state.value.compare_exchange_strong(expected, unwinding(rank_))) {
    wake_everybody();
  }
}

void Member::leave() noexcept {
  slot(rank_).left.store(1, std::memory_order_release);
  slot(rank_).step.wake_all();
}

void Member::wake_everybody() const {
  for (int r = 0; r < size_; ++r) slot(r).step.wake_all();
}

std::exception_ptr Member::failure(Operation operation) const {
  FailureRecord& failure = header().failure;
  std::uint32_t state = failure.state.load();
  if (state == FailureRecord::running) return nullptr;
  // The text is a moment away, unless its writer dies first.
  const Deadline grace = Deadline::after(kTextGrace);
  while (state != FailureRecord::complete && !grace.passed()) {
    failure.state.sleep(state, grace.left());
    state = failure.state.load();
  }
  Failure told;
  if (state == FailureRecord::complete) {
    told = {failure.kind.load(), failure.origin.load(),
            std::string(failure.reason, strnlen(failure.reason, sizeof(failure.reason)))};
  } else {
    told.origin = state >= FailureRecord::text_follows
                      ? static_cast<int>(state - FailureRecord::text_follows)
                      : failure.origin.load();
    told.reason = str("rank ", told.origin, " failed: an exception left the scope of its group");
  }
  return make_error(told, operation,
                    {rank_, size_, group_, sequence_.load(std::memory_order_relaxed)});
}

}  // namespace cohort::comm::shm
