#include "comm/nccl/watch.h"

#include <charconv>
#include <utility>
#include <vector>

#include "backend/cuda/poll.h"
#include "cohort/core/logging.h"
#include "comm/work_state.h"

namespace cohort::comm::nccl {
namespace {

// A finished collective's tensors are let go at most this much later, and a deadline is seen so.
constexpr Milliseconds kLook{10};
// A failed peer is seen within this; one small request per rank and interval, while work is open.
constexpr Milliseconds kAskStore{250};
// For telling the peers, while they wait anyway.
constexpr Milliseconds kTell{2'000};
// The store's key for the first failure: "<rank> <text>".
constexpr const char* kFailureKey = "failure";

}  // namespace

bool Mark::ready() const {
  const std::lock_guard lock(mutex_);
  over_ = over_ || end_.ready();
  return over_;
}

void Mark::synchronize(Deadline deadline) {
  check<TimeoutError>(backend::cuda::poll_until(deadline, [&] { return ready(); }), "[event] ",
                      text_, " did not finish before the deadline");
}

Clock::time_point Mark::completed_at() const {
  {
    const std::lock_guard lock(mutex_);
    if (given_up_at_) return *given_up_at_;
  }
  return end_.completed_at();
}

bool Mark::begun() const {
  return state_->begun.ready();
}

Operation Mark::operation() const {
  return state_->operation;
}

void Mark::give_up(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (over_ || end_.ready()) return;
  state_->error = std::move(error);
  given_up_at_ = Clock::now();
  over_ = true;
}

Watch::Watch(Communicator& communicator, std::shared_ptr<Store> store, int rank, std::string group)
    : communicator_(communicator),
      store_(std::move(store)),
      rank_(rank),
      group_(std::move(group)),
      thread_([this] { run(); }) {}

Watch::~Watch() {
  stop();
}

void Watch::stop() noexcept {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

Event Watch::add(const Call& call, Event end, std::shared_ptr<WorkState> state,
                 std::shared_ptr<void> held) {
  auto mark = make_intrusive<Mark>(std::move(end), std::move(state), describe(call));
  std::optional<Failure> failed;
  {
    const std::lock_guard lock(mutex_);
    failed = failure_;
    open_.push_back({mark, call.timeout, {}, std::move(held)});
  }
  // A failure between the call and here has not given this one up.
  if (failed) mark->give_up(worded(*failed, call.operation));
  changed_.notify_all();
  return Event(mark);
}

void Watch::abort(int culprit, const std::string& reason) noexcept {
  end_with({.timeout = false, .rank = culprit, .text = reason}, /*tell_peers=*/true);
}

std::exception_ptr Watch::failure(Operation operation) const {
  const std::lock_guard lock(mutex_);
  return failure_ ? worded(*failure_, operation) : nullptr;
}

void Watch::run() {
  Clock::time_point asked = Clock::now();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (open_.empty()) {
      changed_.wait(lock, [&] { return stopping_ || !open_.empty(); });
      continue;
    }
    changed_.wait_for(lock, kLook, [&] { return stopping_; });
    std::vector<Entry> finished;  // their tensors go outside the lock
    // The mark is asked too: nobody writes its error any more once it is ready.
    while (!open_.empty() && open_.front().mark->left_device() && open_.front().mark->ready()) {
      finished.push_back(std::move(open_.front()));
      open_.pop_front();
    }
    const bool failed = failure_.has_value();
    lock.unlock();
    finished.clear();
    if (!failed) {
      const bool ask_store = Clock::now() - asked >= kAskStore;
      if (ask_store) asked = Clock::now();
      if (std::optional<Failure> found = look(ask_store)) {
        end_with(*std::move(found), /*tell_peers=*/true);
      }
    }
    lock.lock();
  }
}

std::optional<Watch::Failure> Watch::look(bool ask_store) {
  if (std::optional<Failure> late = overdue()) return late;
  if (const std::string trouble = communicator_.trouble(); !trouble.empty()) {
    // Often the echo of a peer's end: its own words say more.
    if (std::optional<Failure> cause = told()) return cause;
    return Failure{.timeout = false, .rank = rank_, .text = trouble};
  }
  return ask_store ? told() : std::nullopt;
}

std::optional<Watch::Failure> Watch::overdue() {
  const std::lock_guard lock(mutex_);
  if (open_.empty()) return std::nullopt;
  Entry& first = open_.front();
  if (!first.deadline) {
    if (first.mark->begun()) first.deadline = Deadline::after(first.timeout);
    return std::nullopt;
  }
  if (!first.deadline->passed() || first.mark->ready()) return std::nullopt;
  return Failure{.timeout = true,
                 .rank = rank_,
                 .text = str(first.mark->text(), " did not finish within ", first.timeout.count(),
                             " ms on rank ", rank_,
                             "; a rank that called something else, or "
                             "nothing, is the usual cause")};
}

std::optional<Watch::Failure> Watch::told() {
  if (store_gone_) return std::nullopt;
  try {
    const std::optional<std::string> text = store_->try_get(kFailureKey, kTell);
    if (!text) return std::nullopt;
    Failure failure{.timeout = false, .rank = -1, .text = *text};
    const auto [end, error] =
        std::from_chars(text->data(), text->data() + text->size(), failure.rank);
    if (error == std::errc() && *end == ' ') failure.text = std::string(end + 1);
    return failure;
  } catch (const std::exception& error) {
    // Its host may have left first; deadlines and NCCL's own errors remain.
    store_gone_ = true;
    logging::debug(str("[nccl] the store of group '", group_, "' is gone: ", error.what()));
    return std::nullopt;
  }
}

void Watch::end_with(const Failure& failure, bool tell_peers) noexcept {
  std::vector<IntrusivePtr<Mark>> open;
  {
    const std::lock_guard lock(mutex_);
    if (failure_) return;
    failure_ = failure;
    for (const Entry& entry : open_) open.push_back(entry.mark);
  }
  // The errors first: aborted work ends on the device like work that is done.
  for (const IntrusivePtr<Mark>& mark : open) mark->give_up(worded(failure, mark->operation()));
  communicator_.abort();
  if (tell_peers) tell(failure);
}

void Watch::tell(const Failure& failure) noexcept {
  try {
    store_->compare_and_set(kFailureKey, std::nullopt, str(failure.rank, ' ', failure.text), kTell);
  } catch (const std::exception& error) {
    logging::debug(str("[nccl] group '", group_, "' could not tell its peers: ", error.what()));
  }
}

std::exception_ptr Watch::worded(const Failure& failure, Operation operation) const {
  const std::string text =
      str("[", operation, "] ", failure.text, " (rank ", rank_, ", group '", group_, "')");
  if (failure.timeout) return std::make_exception_ptr(TimeoutError(text));
  return std::make_exception_ptr(PeerError(text, failure.rank));
}

}  // namespace cohort::comm::nccl
