#include "comm/flight_recorder.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

// A record of that many collectives takes 130 MB: more is a mistake.
constexpr std::int64_t kMaxRecords = 1'000'000;
// Further groups that this rank has left are forgotten, the oldest first.
constexpr std::size_t kMaxGroups = 1024;
// Texts of collectives that failed. Those behind the first mostly repeat it.
constexpr std::size_t kMaxErrors = 32;

std::int64_t nanoseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

bool is_pair(Operation operation) {
  return operation == Operation::send || operation == Operation::recv;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

std::string_view name(FlightState state) {
  switch (state) {
    case FlightState::enqueued:
      return "enqueued";
    case FlightState::started:
      return "started";
    case FlightState::finished:
      return "finished";
    case FlightState::failed:
      return "failed";
  }
  return "unknown";
}

FlightRecorderOptions FlightRecorderOptions::from_environment() {
  FlightRecorderOptions options;
  options.trace_dir = variable("COHORT_TRACE_DIR");
  if (const std::string text = variable("COHORT_FLIGHT_RECORDER_SIZE"); !text.empty()) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), options.size);
    check(error == std::errc() && end == text.data() + text.size() && options.size >= 0 &&
              options.size <= kMaxRecords,
          "[flight_recorder] COHORT_FLIGHT_RECORDER_SIZE is '", text,
          "'; it is the number of collectives that are kept, 0 to ", kMaxRecords);
  }
  if (const std::string text = variable("COHORT_CHECK_SIGNATURES"); !text.empty()) {
    check(text == "0" || text == "1", "[flight_recorder] COHORT_CHECK_SIGNATURES is '", text,
          "'; it is 1, or 0 for measuring");
    options.check_signatures = text == "1";
  }
  return options;
}

// ---- the ring

namespace {

constexpr std::uint64_t kWriting = 1;

constexpr std::uint64_t word_of(std::uint64_t ticket, FlightState state) {
  return ticket << 3 | static_cast<std::uint64_t>(state) << 1;
}

constexpr std::size_t kStartedWord = offsetof(FlightEntry, started) / sizeof(std::uint64_t);
constexpr std::size_t kFinishedWord = offsetof(FlightEntry, finished) / sizeof(std::uint64_t);

}  // namespace

FlightRing::FlightRing(std::size_t size) : slots_(size) {}

// Why the words are released and acquired one by one: a reader that sees a word of a later writing
// then also sees that writing's odd word, and so knows. On x86 both are plain moves.

std::uint64_t FlightRing::enqueue(const FlightEntry& entry) noexcept {
  const std::uint64_t ticket = tickets_.fetch_add(1, std::memory_order_relaxed) + 1;
  Slot& at = slot(ticket);
  std::uint64_t seen = at.word.load(std::memory_order_relaxed);
  if ((seen & kWriting) != 0 ||
      !at.word.compare_exchange_strong(seen, word_of(ticket, FlightState::enqueued) | kWriting,
                                       std::memory_order_acq_rel, std::memory_order_relaxed)) {
    return 0;
  }
  std::uint64_t words[kWords];
  std::memcpy(words, &entry, sizeof(words));
  for (std::size_t i = 0; i < kWords; ++i) at.words[i].store(words[i], std::memory_order_release);
  at.word.store(word_of(ticket, FlightState::enqueued), std::memory_order_release);
  return ticket;
}

void FlightRing::advance(std::uint64_t ticket, FlightState to, Clock::time_point at_time) noexcept {
  Slot& at = slot(ticket);
  std::uint64_t seen = at.word.load(std::memory_order_relaxed);
  // A whole ring behind: the slot is a later collective's.
  if (seen >> 3 != ticket || (seen & kWriting) != 0) return;
  if (!at.word.compare_exchange_strong(seen, seen | kWriting, std::memory_order_acq_rel,
                                       std::memory_order_relaxed)) {
    return;
  }
  const std::size_t word = to == FlightState::started ? kStartedWord : kFinishedWord;
  at.words[word].store(static_cast<std::uint64_t>(nanoseconds(at_time)), std::memory_order_release);
  at.word.store(word_of(ticket, to), std::memory_order_release);
}

std::vector<FlightRecord> FlightRing::read() const {
  // A writer is done in nanoseconds, unless it was interrupted.
  constexpr int kTries = 100;
  std::vector<FlightRecord> records;
  for (const Slot& at : slots_) {
    for (int i = 0; i < kTries; ++i) {
      const std::uint64_t before = at.word.load(std::memory_order_acquire);
      if (before == 0) break;
      if ((before & kWriting) != 0) continue;
      std::uint64_t words[kWords];
      for (std::size_t w = 0; w < kWords; ++w) {
        words[w] = at.words[w].load(std::memory_order_acquire);
      }
      if (at.word.load(std::memory_order_relaxed) != before) continue;
      FlightRecord& record = records.emplace_back();
      record.ticket = before >> 3;
      record.state = static_cast<FlightState>(before >> 1 & 3);
      std::memcpy(&record.entry, words, sizeof(words));
      break;
    }
  }
  std::sort(records.begin(), records.end(),
            [](const auto& a, const auto& b) { return a.ticket < b.ticket; });
  return records;
}

// ---- the recorder

FlightRecorder::FlightRecorder(FlightRecorderOptions options)
    : options_(std::move(options)),
      ring_(options_.size > 0
                ? std::make_unique<FlightRing>(static_cast<std::size_t>(options_.size))
                : nullptr) {}

std::shared_ptr<FlightRecorder> FlightRecorder::of(Runtime& runtime) {
  return runtime.shared<FlightRecorder>(
      [] { return std::make_shared<FlightRecorder>(FlightRecorderOptions::from_environment()); });
}

std::shared_ptr<FlightGroup> FlightRecorder::add(std::string name, std::string_view backend,
                                                 int rank, std::vector<int> world_ranks,
                                                 int runtime_rank) {
  const std::lock_guard lock(mutex_);
  rank_ = runtime_rank;
  if (groups_.size() >= kMaxGroups) {
    const auto gone =
        std::find_if(groups_.begin(), groups_.end(), [](const auto& group) { return group->left; });
    if (gone != groups_.end()) groups_.erase(gone);
  }
  auto group = std::make_shared<FlightGroup>();
  group->id = next_group_++;
  group->name = std::move(name);
  group->backend = backend;
  group->rank = rank;
  group->world_ranks = std::move(world_ranks);
  groups_.push_back(group);
  return group;
}

void FlightRecorder::note_failure(FlightGroup& group, const std::string& text) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!group.failure.empty()) return;
    group.failure = text.empty() ? "failed" : text;
  }
  write_trace("failure");
}

void FlightRecorder::note_left(FlightGroup& group) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(group.left, true)) return;
    bool any = false;
    for (const auto& known : groups_) {
      if (!known->left) return;
      // What failed is on disk already.
      if (!known->failure.empty()) return;
      any = any || known->world_ranks.size() > 1;
    }
    if (!any || !exception_.empty()) return;
  }
  write_trace("left");
}

void FlightRecorder::note_exception(const std::string& text) noexcept {
  {
    const std::lock_guard lock(mutex_);
    // The error of a collective, on its way out of the program, is no other one.
    const bool echo = std::any_of(groups_.begin(), groups_.end(),
                                  [](const auto& group) { return !group->failure.empty(); });
    if (echo || !exception_.empty()) return;
    exception_ = text.empty() ? "failed" : text;
  }
  write_trace("failure");
}

void FlightRecorder::note_error(std::uint64_t ticket, const std::string& text) noexcept {
  const std::lock_guard lock(mutex_);
  errors_.emplace_back(ticket, text);
  if (errors_.size() > kMaxErrors) errors_.pop_front();
}

// ---- a group's side

GroupRecord::GroupRecord(Runtime& runtime, std::string name, std::string_view backend, int rank,
                         int size, std::vector<int> world_ranks)
    : recorder_(FlightRecorder::of(runtime)),
      group_([&] {
        if (world_ranks.empty()) {
          world_ranks.resize(static_cast<std::size_t>(size));
          std::iota(world_ranks.begin(), world_ranks.end(), 0);
        }
        return recorder_->add(std::move(name), backend, rank, std::move(world_ranks),
                              runtime.rank());
      }()),
      ring_(size > 1 ? recorder_->ring() : nullptr),
      pairs_(2 * static_cast<std::size_t>(size)) {}

std::uint64_t GroupRecord::enqueue(const Call& call, Clock::time_point at) noexcept {
  if (ring_ == nullptr) return 0;
  FlightEntry entry;
  if (is_pair(call.operation)) {
    const std::size_t first = call.operation == Operation::send ? 0 : pairs_.size() / 2;
    entry.sequence = ++pairs_[first + static_cast<std::size_t>(call.peer)];
  } else {
    entry.sequence = group_->collectives.load(std::memory_order_relaxed) + 1;
    group_->collectives.store(entry.sequence, std::memory_order_relaxed);
  }
  entry.enqueued = nanoseconds(at);
  entry.elements = call.elements;
  entry.scale = call.scale;
  entry.group = group_->id;
  entry.peer = call.peer;
  entry.operation = call.operation;
  entry.reduce = call.reduce;
  entry.dtype = call.dtype;
  call.owner.copy(entry.owner, kFlightOwnerBytes - 1);
  return ring_->enqueue(entry);
}

void GroupRecord::failed(std::uint64_t ticket, Clock::time_point at,
                         const std::string& error) noexcept {
  if (ticket == 0) return;
  ring_->advance(ticket, FlightState::failed, at);
  recorder_->note_error(ticket, error);
}

}  // namespace cohort::comm
