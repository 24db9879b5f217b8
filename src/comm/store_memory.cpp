#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "cohort/comm/store.h"
#include "cohort/core/error.h"
#include "comm/store_number.h"

namespace cohort::comm {

struct MemoryStore::State {
  std::mutex mutex;
  std::condition_variable changed;
  std::unordered_map<std::string, std::string> values;

  // Waits until all of `keys` are set; `lock` holds the mutex.
  template <typename Keys>
  void wait(std::unique_lock<std::mutex>& lock, const char* operation, const Keys& keys,
            Deadline deadline) {
    const auto missing = [&] {
      return std::find_if(keys.begin(), keys.end(),
                          [&](const std::string& key) { return !values.contains(key); });
    };
    if (!changed.wait_until(lock, deadline.at(), [&] { return missing() == keys.end(); })) {
      throw TimeoutError(
          str("[", operation, "] the key '", *missing(), "' was not set before the deadline"));
    }
  }
};

MemoryStore::MemoryStore(Milliseconds timeout) : MemoryStore(std::make_shared<State>(), timeout) {}

MemoryStore::MemoryStore(std::shared_ptr<State> state, Milliseconds timeout)
    : Store(timeout), state_(std::move(state)) {}

MemoryStore::~MemoryStore() {
  const std::lock_guard lock(state_->mutex);
  for (auto& [key, value] : wills_) state_->values[key] = std::move(value);
  if (!wills_.empty()) state_->changed.notify_all();
}

std::shared_ptr<MemoryStore> MemoryStore::connect() const {
  return std::shared_ptr<MemoryStore>(new MemoryStore(state_, timeout()));
}

void MemoryStore::do_set(const std::string& key, std::string value, Deadline) {
  const std::lock_guard lock(state_->mutex);
  state_->values[key] = std::move(value);
  state_->changed.notify_all();
}

std::string MemoryStore::do_get(const std::string& key, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  state_->wait(lock, "store.get", std::vector<std::string>{key}, deadline);
  return state_->values[key];
}

std::optional<std::string> MemoryStore::do_try_get(const std::string& key, Deadline) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->values.find(key);
  if (found == state_->values.end()) return std::nullopt;
  return found->second;
}

std::int64_t MemoryStore::do_add(const std::string& key, std::int64_t delta, Deadline) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->values.find(key);
  const auto sum = add_to_decimal(found == state_->values.end() ? "0" : found->second, delta);
  check(sum.has_value(), "[store.add] the value of '", key, "' is no number that ", delta,
        " can be added to");
  state_->values[key] = std::to_string(*sum);
  state_->changed.notify_all();
  return *sum;
}

bool MemoryStore::do_compare_and_set(const std::string& key,
                                     const std::optional<std::string>& expected,
                                     std::string desired, Deadline) {
  const std::lock_guard lock(state_->mutex);
  const auto found = state_->values.find(key);
  const bool equal = found == state_->values.end() ? !expected : expected == found->second;
  if (!equal) return false;
  state_->values[key] = std::move(desired);
  state_->changed.notify_all();
  return true;
}

bool MemoryStore::do_erase(const std::string& key, Deadline) {
  const std::lock_guard lock(state_->mutex);
  return state_->values.erase(key) > 0;
}

void MemoryStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  std::unique_lock lock(state_->mutex);
  state_->wait(lock, "store.wait", keys, deadline);
}

void MemoryStore::do_set_on_disconnect(const std::string& key, std::string value, Deadline) {
  const std::lock_guard lock(state_->mutex);
  const auto found = std::find_if(wills_.begin(), wills_.end(),
                                  [&](const auto& will) { return will.first == key; });
  if (found != wills_.end()) {
    found->second = std::move(value);
  } else {
    wills_.emplace_back(key, std::move(value));
  }
}

void MemoryStore::do_goodbye(Deadline) {
  const std::lock_guard lock(state_->mutex);
  wills_.clear();
}

}  // namespace cohort::comm
