#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "comm/shm/control.h"
#include "comm/shm/mapping.h"

namespace cohort::comm::shm {

class Member;

// One rank's groups that were split from one first group. In that group's segment every rank shows
// where it is, whatever the group: since a rank runs one collective at a time, two ranks that wait
// for each other in two groups wait for ever, and this is how they find out. Thread-safe.
class Family {
 public:
  Family(std::shared_ptr<Mapping> first_segment, int size)
      : segment_(std::move(first_segment)), layout_(size) {}

  RankSlot& slot(int first_rank) const { return layout_.rank(segment_->data(), first_rank); }

  void add(std::uint64_t id, const std::weak_ptr<Member>& member) {
    const std::lock_guard lock(mutex_);
    members_[id] = member;
  }
  void remove(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    members_.erase(id);
  }
  // This rank's part in group `id`, or null when it has none.
  std::shared_ptr<Member> find(std::uint64_t id) const {
    const std::lock_guard lock(mutex_);
    const auto found = members_.find(id);
    return found == members_.end() ? nullptr : found->second.lock();
  }

 private:
  const std::shared_ptr<Mapping> segment_;
  const Layout layout_;
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::weak_ptr<Member>> members_;
};

}  // namespace cohort::comm::shm
