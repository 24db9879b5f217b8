#pragma once

#include <memory>

#include "cohort/comm/process_group.h"
#include "cohort/optim/grad_scaler.h"

namespace cohort {

// optim::GradScaler for the ranks of a group: an overflow on one rank leaves out the step on all of
// them, and all scales stay equal. Costs one all-reduce of 4 bytes per optimizer and step, in
// step() or in unscale_() where that comes first; both are collective then. Under join() ranks
// without inputs have no say. No gradients is an error when no rank has any.
class DistributedGradScaler final : public optim::GradScaler {
 public:
  // Collective: all ranks must give the same options, MismatchError on all otherwise.
  // InvalidArgument when the group is null.
  explicit DistributedGradScaler(std::shared_ptr<comm::ProcessGroup> group,
                                 const optim::GradScalerOptions& options = {});

 protected:
  Verdict agree(Verdict mine) override;

 private:
  std::shared_ptr<comm::ProcessGroup> group_;
};

// PyTorch's name for the one of FSDP, which is the same: infinities that lie in other ranks' parts
// count. Give it the group that FSDP was made with, the whole one under hybrid strategies too.
using ShardedGradScaler = DistributedGradScaler;

}  // namespace cohort
