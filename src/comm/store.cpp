#include "cohort/comm/store.h"

#include <utility>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

std::string checked_key(const char* operation, std::string_view key) {
  check(!key.empty(), "[", operation, "] the key is empty");
  check(key.size() <= kMaxStoreKey, "[", operation, "] the key has ", key.size(),
        " bytes; at most ", kMaxStoreKey, " are allowed");
  return std::string(key);
}

std::string checked_value(const char* operation, std::string_view key, std::string_view value,
                          std::size_t beside = 0) {
  if (value.size() + beside > kMaxStoreValue) {
    throw InvalidArgument(str("[", operation, "] the value of '", key, "' has ",
                              value.size() + beside, " bytes; at most ", kMaxStoreValue,
                              " are allowed; publish it in parts"));
  }
  return std::string(value);
}

}  // namespace

void Store::set(std::string_view key, std::string_view value, Timeout timeout) {
  do_set(checked_key("store.set", key), checked_value("store.set", key, value), deadline(timeout));
}

std::string Store::get(std::string_view key, Timeout timeout) {
  return do_get(checked_key("store.get", key), deadline(timeout));
}

std::optional<std::string> Store::try_get(std::string_view key, Timeout timeout) {
  return do_try_get(checked_key("store.try_get", key), deadline(timeout));
}

std::int64_t Store::add(std::string_view key, std::int64_t delta, Timeout timeout) {
  return do_add(checked_key("store.add", key), delta, deadline(timeout));
}

bool Store::compare_and_set(std::string_view key, const std::optional<std::string>& expected,
                            std::string_view desired, Timeout timeout) {
  const std::size_t beside = expected ? expected->size() : 0;
  return do_compare_and_set(checked_key("store.compare_and_set", key), expected,
                            checked_value("store.compare_and_set", key, desired, beside),
                            deadline(timeout));
}

bool Store::erase(std::string_view key, Timeout timeout) {
  return do_erase(checked_key("store.erase", key), deadline(timeout));
}

void Store::wait(const std::vector<std::string>& keys, Timeout timeout) {
  check(keys.size() <= kMaxStoreWaitKeys, "[store.wait] ", keys.size(), " keys at once; at most ",
        kMaxStoreWaitKeys, " are allowed");
  for (const std::string& key : keys) checked_key("store.wait", key);
  if (!keys.empty()) do_wait(keys, deadline(timeout));
}

void Store::set_on_disconnect(std::string_view key, std::string_view value, Timeout timeout) {
  do_set_on_disconnect(checked_key("store.set_on_disconnect", key),
                       checked_value("store.set_on_disconnect", key, value), deadline(timeout));
}

void Store::goodbye(Timeout timeout) {
  do_goodbye(deadline(timeout));
}

PrefixStore::PrefixStore(std::string prefix, std::shared_ptr<Store> store)
    : Store(store ? store->timeout() : kDefaultStoreTimeout),
      prefix_(std::move(prefix)),
      store_(std::move(store)) {
  check(store_ != nullptr, "[PrefixStore] the underlying store is null");
}

std::string PrefixStore::full(const std::string& key) const {
  return checked_key("PrefixStore", prefix_ + "/" + key);
}

void PrefixStore::do_set(const std::string& key, std::string value, Deadline deadline) {
  store_->do_set(full(key), std::move(value), deadline);
}

std::string PrefixStore::do_get(const std::string& key, Deadline deadline) {
  return store_->do_get(full(key), deadline);
}

std::optional<std::string> PrefixStore::do_try_get(const std::string& key, Deadline deadline) {
  return store_->do_try_get(full(key), deadline);
}

std::int64_t PrefixStore::do_add(const std::string& key, std::int64_t delta, Deadline deadline) {
  return store_->do_add(full(key), delta, deadline);
}

bool PrefixStore::do_compare_and_set(const std::string& key,
                                     const std::optional<std::string>& expected,
                                     std::string desired, Deadline deadline) {
  return store_->do_compare_and_set(full(key), expected, std::move(desired), deadline);
}

bool PrefixStore::do_erase(const std::string& key, Deadline deadline) {
  return store_->do_erase(full(key), deadline);
}

void PrefixStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  std::vector<std::string> full_keys;
  full_keys.reserve(keys.size());
  for (const std::string& key : keys) full_keys.push_back(full(key));
  store_->do_wait(full_keys, deadline);
}

void PrefixStore::do_set_on_disconnect(const std::string& key, std::string value,
                                       Deadline deadline) {
  store_->do_set_on_disconnect(full(key), std::move(value), deadline);
}

void PrefixStore::do_goodbye(Deadline deadline) {
  store_->do_goodbye(deadline);
}

}  // namespace cohort::comm
