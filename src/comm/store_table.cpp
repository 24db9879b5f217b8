#include "comm/store_table.h"

#include <algorithm>
#include <utility>

namespace cohort::comm {

StoreValue StoreTable::find(const std::string& key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : found->second;
}

bool StoreTable::set(const std::string& key, std::string value) {
  const auto found = values_.find(key);
  const bool fresh = found == values_.end();
  const std::size_t freed = fresh ? 0 : key.size() + found->second->size();
  const std::size_t bytes = bytes_ - freed + key.size() + value.size();
  if (bytes > max_bytes_) return false;
  auto shared = std::make_shared<const std::string>(std::move(value));
  if (fresh) {
    values_.emplace(key, std::move(shared));
  } else {
    found->second = std::move(shared);
  }
  bytes_ = bytes;

  auto waiting = waiters_.extract(key);
  if (waiting.empty()) return true;
  for (const std::shared_ptr<Waiter>& waiter : waiting.mapped()) {
    waiter->parked_ = false;
    --parked_;
    wait(waiter);
  }
  return true;
}

bool StoreTable::erase(const std::string& key) {
  const auto found = values_.find(key);
  if (found == values_.end()) return false;
  bytes_ -= key.size() + found->second->size();
  values_.erase(found);
  return true;
}

void StoreTable::wait(const std::shared_ptr<Waiter>& waiter) {
  const auto missing = std::find_if(waiter->keys_.begin(), waiter->keys_.end(),
                                    [&](const std::string& key) { return !values_.contains(key); });
  if (missing == waiter->keys_.end()) {
    waiter->done_(find(waiter->keys_.front()));
    return;
  }
  auto& list = waiters_[*missing];
  waiter->missing_ = *missing;
  waiter->place_ = list.insert(list.end(), waiter);
  waiter->parked_ = true;
  ++parked_;
}

void StoreTable::unpark(Waiter& waiter) {
  if (!waiter.parked_) return;
  const auto found = waiters_.find(waiter.missing_);
  waiter.parked_ = false;
  --parked_;
  // Copies what it needs first: erasing may destroy the waiter.
  const auto place = waiter.place_;
  found->second.erase(place);
  if (found->second.empty()) waiters_.erase(found);
}

}  // namespace cohort::comm
