#include "cohort/parallel/grad_scaler.h"

#include <cstdint>
#include <utility>

#include "cohort/core/error.h"
#include "parallel/agreement.h"

namespace cohort {

DistributedGradScaler::DistributedGradScaler(std::shared_ptr<comm::ProcessGroup> group,
                                             const optim::GradScalerOptions& options)
    : GradScaler(options), group_(std::move(group)) {
  check(group_ != nullptr, "[DistributedGradScaler] the process group is null");
  parallel::require_agreement(
      *group_, "[DistributedGradScaler] options",
      {str("init_scale ", options.init_scale, ", growth_factor ", options.growth_factor,
           ", backoff_factor ", options.backoff_factor, ", growth_interval ",
           options.growth_interval, ", enabled ", options.enabled)});
}

optim::GradScaler::Verdict DistributedGradScaler::agree(Verdict mine) {
  if (group_->size() == 1) return mine;
  const Tensor verdict = Tensor::scalar(static_cast<std::int32_t>(mine));
  group_->all_reduce(verdict, comm::ReduceOp::max, {.owner = "found_inf"}).synchronize();
  return static_cast<Verdict>(verdict.item<std::int32_t>());
}

}  // namespace cohort
