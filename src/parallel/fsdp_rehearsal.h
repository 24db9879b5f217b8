#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "cohort/parallel/fsdp_plan.h"
#include "parallel/fsdp_collectives.h"

namespace cohort::parallel {

// The other ranks of a step that is run on the meta device: notes down each collective and what it
// will move, and does nothing.
class RecordedCollectives final : public FSDPCollectives {
 public:
  comm::Work all_gather(comm::ProcessGroup& group, const Tensor& out, const Tensor& in,
                        const comm::CollectiveOptions& options) override;
  comm::Work reduce_scatter(comm::ProcessGroup& group, const Tensor& out, const Tensor& in,
                            comm::ReduceOp op, const comm::CollectiveOptions& options) override;
  comm::Work all_reduce(comm::ProcessGroup& group, const Tensor& tensor, comm::ReduceOp op,
                        const comm::CollectiveOptions& options) override;
  comm::Work barrier(comm::ProcessGroup& group, const comm::CollectiveOptions& options) override;
  Tensor allocate(comm::ProcessGroup& group, std::int64_t bytes) override;
  void abort(comm::ProcessGroup&, const std::string&) noexcept override {}
  Device device() const override { return Device::meta(); }

  const std::vector<FSDPPlan::Collective>& record() const { return record_; }
  void clear() { record_.clear(); }

 private:
  void note(const comm::ProcessGroup& group, comm::Operation operation, const Tensor& largest,
            bool symmetric, bool in_place, const std::string& owner);

  bool is_symmetric(const Tensor& tensor) const { return symmetric_->contains(&tensor.storage()); }

  std::vector<FSDPPlan::Collective> record_;
  // Storages of allocate() that live.
  std::shared_ptr<std::set<const Storage*>> symmetric_ =
      std::make_shared<std::set<const Storage*>>();
};

}  // namespace cohort::parallel
