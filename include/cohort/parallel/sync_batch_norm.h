#pragma once

#include <cstdint>
#include <memory>

#include "cohort/comm/process_group.h"
#include "cohort/nn/norm.h"
#include "cohort/parallel/collective_module.h"

namespace cohort {

// BatchNorm1d and BatchNorm2d by the statistics of the batches of all ranks of a group:
// x [N, C], [N, C, L] or [N, C, H, W]. Parameters, buffers, options and errors are BatchNorm's.
//
// Training: each forward is one all-gather of 1 + 2C f64 per rank, and each backward that wants a
// gradient of x one all-reduce of 2C f64, under no_sync() too, so all ranks must come to the same
// layers. Batches may differ in size and may be empty, all of them at once too (the running
// statistics stay then); InvalidArgument on all ranks for one value per channel in all of them.
// Statistics are combined in f64 in rank order: all ranks have the same bits. Weight and bias get
// the gradients of this rank's batch; DDP averages them. Evaluation has no collectives. Under
// join() a rank without inputs counts as one with an empty batch.
//
// DDP must be built after it. A failure in backward ends the group (parallel/ddp.h).
class SyncBatchNorm : public nn::BatchNorm, public parallel::CollectiveModule {
 public:
  // InvalidArgument when the group is null.
  SyncBatchNorm(std::int64_t num_features, std::shared_ptr<comm::ProcessGroup> group,
                const nn::BatchNormLayerOptions& options = {});

 protected:
  void check_input(const Tensor& x) const override;
};

// Gives every BatchNorm in the tree of `module` the statistics of all ranks of `group`, as
// SyncBatchNorm has them; PyTorch's function of the same name replaces them by other modules, which
// members of a C++ type rule out. The layers stay the objects that they are, parameters and buffers
// with them. Those with statistics of a group already are left alone. Not collective, but all ranks
// must do it alike, before DDP is built. Returns the number of layers converted. InvalidArgument
// when the group is null.
int convert_sync_batchnorm(nn::Module& module, const std::shared_ptr<comm::ProcessGroup>& group);

}  // namespace cohort
