#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "comm/shm/mapping.h"

namespace cohort::comm::shm {

// Beside the shared memory itself: how the ranks of one group hand segments to each other and see
// that a peer has died. Used by the rank's queue only, gone() apart.
class Link {
 public:
  virtual ~Link() = default;

  // Called while waiting; throws to give up.
  using Poll = std::function<void()>;

  // Rank 0 hands `segment` to all others, or null with the reason why there is none. `tag` names
  // the occasion; giver and receivers use the same.
  virtual void offer(std::uint64_t tag, const std::shared_ptr<Mapping>& segment,
                     const std::string& reason, const Poll& poll) = 0;
  // What rank 0 offered, checked to have `bytes`. OutOfMemory when it had none.
  virtual std::shared_ptr<Mapping> receive(std::uint64_t tag, std::size_t bytes,
                                           const Poll& poll) = 0;
  // True once the process of `rank` has ended. Thread-safe.
  virtual bool gone(int rank) = 0;
  // The link among some of the ranks; the first becomes rank 0.
  virtual std::shared_ptr<Link> subset(const std::vector<int>& members) = 0;
};

}  // namespace cohort::comm::shm
