#pragma once

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

namespace cohort::comm {

// Values are shared with the replies on their way out, so that a large value waited for by a
// thousand ranks exists once.
using StoreValue = std::shared_ptr<const std::string>;

// The server's keys, values and waiting calls. Not thread-safe: the event loop owns it.
class StoreTable {
 public:
  // A call that waits for keys; `done` gets the value of the first one. It must not change the
  // table.
  class Waiter {
   public:
    Waiter(std::vector<std::string> keys, std::function<void(const StoreValue&)> done)
        : keys_(std::move(keys)), done_(std::move(done)) {}

   private:
    friend class StoreTable;
    std::vector<std::string> keys_;
    std::function<void(const StoreValue&)> done_;
    // While parked it stands in the list of one missing key, and remembers where.
    std::string missing_;
    std::list<std::shared_ptr<Waiter>>::iterator place_;
    bool parked_ = false;
  };

  explicit StoreTable(std::size_t max_bytes) : max_bytes_(max_bytes) {}

  // Null when absent.
  StoreValue find(const std::string& key) const;
  // False when the table is full. Calls `done` of the waiters that this satisfies.
  bool set(const std::string& key, std::string value);
  bool erase(const std::string& key);
  // Calls `done` now if all keys are set, otherwise as soon as they are.
  void wait(const std::shared_ptr<Waiter>& waiter);
  // Forgets a parked waiter.
  void unpark(Waiter& waiter);

  std::size_t size() const { return values_.size(); }
  std::size_t bytes() const { return bytes_; }
  std::size_t parked() const { return parked_; }

 private:
  const std::size_t max_bytes_;
  std::size_t bytes_ = 0;
  std::size_t parked_ = 0;
  std::unordered_map<std::string, StoreValue> values_;
  std::unordered_map<std::string, std::list<std::shared_ptr<Waiter>>> waiters_;
};

}  // namespace cohort::comm
