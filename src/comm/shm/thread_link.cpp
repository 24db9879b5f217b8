#include "comm/shm/thread_link.h"

#include <condition_variable>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "cohort/core/deadline.h"
#include "cohort/core/error.h"

namespace cohort::comm::shm {

class Hub {
 public:
  struct Offer {
    std::shared_ptr<Mapping> segment;
    std::string reason;
  };
  using Key = std::pair<std::uint64_t, int>;  // occasion and receiver

  void put(Key key, Offer offer) {
    const std::lock_guard lock(mutex_);
    offers_[key] = std::move(offer);
    changed_.notify_all();
  }

  Offer take(Key key, const Link::Poll& poll) {
    std::unique_lock lock(mutex_);
    while (!offers_.contains(key)) {
      lock.unlock();
      poll();
      lock.lock();
      changed_.wait_for(lock, Milliseconds(20), [&] { return offers_.contains(key); });
    }
    return std::move(offers_.extract(key).mapped());
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, Offer> offers_;
};

std::shared_ptr<Hub> make_hub() {
  return std::make_shared<Hub>();
}

namespace {

class ThreadLink final : public Link {
 public:
  ThreadLink(std::shared_ptr<Hub> hub, std::vector<int> members, int self)
      : hub_(std::move(hub)), members_(std::move(members)), self_(self) {}

  void offer(std::uint64_t tag, const std::shared_ptr<Mapping>& segment, const std::string& reason,
             const Poll&) override {
    for (const int member : members_) {
      if (member != self_) hub_->put({tag, member}, {segment, reason});
    }
  }
  std::shared_ptr<Mapping> receive(std::uint64_t tag, std::size_t bytes,
                                   const Poll& poll) override {
    Hub::Offer offer = hub_->take({tag, self_}, poll);
    if (!offer.segment) throw OutOfMemory(offer.reason);
    check<Error>(offer.segment->bytes() == bytes, "[shared memory] a peer made a segment of ",
                 offer.segment->bytes(), " bytes where ", bytes, " were agreed on");
    return std::move(offer.segment);
  }
  bool gone(int) override { return false; }  // threads end with their process
  std::shared_ptr<Link> subset(const std::vector<int>& members) override {
    std::vector<int> threads;
    for (const int member : members) threads.push_back(members_[static_cast<std::size_t>(member)]);
    return std::make_shared<ThreadLink>(hub_, std::move(threads), self_);
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const std::vector<int> members_;  // by rank: numbers in the hub
  const int self_;
};

}  // namespace

std::shared_ptr<Link> make_thread_link(std::shared_ptr<Hub> hub, int rank, int size) {
  std::vector<int> members(static_cast<std::size_t>(size));
  std::iota(members.begin(), members.end(), 0);
  return std::make_shared<ThreadLink>(std::move(hub), std::move(members), rank);
}

}  // namespace cohort::comm::shm
