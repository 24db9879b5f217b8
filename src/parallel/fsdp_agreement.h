#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"
#include "parallel/fsdp_collectives.h"

namespace cohort::parallel {

// An OutOfMemory that all ranks raise at the same point of a step: nobody waits for anybody, so the
// group goes on.
class AgreedOutOfMemory : public OutOfMemory {
 public:
  using OutOfMemory::OutOfMemory;
};
bool is_agreed(const std::exception_ptr& error) noexcept;

// How the ranks of a group learn of each other's failures without ending the group. Takes no memory
// after its construction, so that it works when there is none left.
//
// Belongs to the rank's host thread.
class RankAgreement {
 public:
  explicit RankAgreement(std::shared_ptr<comm::ProcessGroup> group);

  // Collective. Each rank's number, by rank.
  std::vector<std::uint8_t> exchange(std::uint8_t mine);
  // Collective. Throws where one rank has an `error`: the rank its own, the others
  // AgreedOutOfMemory or RemoteError, which say who failed `doing` what ("to shard unit
  // 'layers.0'").
  void settle(const std::exception_ptr& error, const std::string& doing);
  // Collective over the whole group, although only `part`, which this rank is a member of, shares
  // the memory: `bytes` for `part`, or AgreedOutOfMemory on all ranks of the group.
  Tensor allocate(FSDPCollectives& collectives, comm::ProcessGroup& part, std::int64_t bytes);

 private:
  std::shared_ptr<comm::ProcessGroup> group_;
  Tensor mine_;  // this rank's number, for each rank
  Tensor all_;   // each rank's number
};

}  // namespace cohort::parallel
