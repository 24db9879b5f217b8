#include "cohort/parallel/sync_batch_norm.h"

#include <string>
#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/ops/batch_parts.h"

namespace cohort {
namespace {

// The batches of a group's ranks. Both collectives are among those that join() mirrors with zeros,
// and zeros say "an empty batch" in both.
class RankBatches final : public BatchParts {
 public:
  RankBatches(std::shared_ptr<comm::ProcessGroup> group, std::string owner)
      : group_(std::move(group)), owner_(std::move(owner)) {}

  Tensor gather(const Tensor& row) override {
    const MemoryCategoryScope category(MemoryCategory::communication);
    Tensor rows = Tensor::empty({group_->size(), row.numel()}, row.options());
    group_->all_gather(rows, row, {.owner = owner_}).wait();
    return rows;
  }
  void add_up(const Tensor& sums) override {
    group_->all_reduce(sums, comm::ReduceOp::sum, {.owner = owner_}).wait();
    sums.storage().bump_version();
  }

 private:
  std::shared_ptr<comm::ProcessGroup> group_;
  std::string owner_;
};

}  // namespace

SyncBatchNorm::SyncBatchNorm(std::int64_t num_features, std::shared_ptr<comm::ProcessGroup> group,
                             const nn::BatchNormLayerOptions& options)
    : BatchNorm("SyncBatchNorm", num_features, options) {
  check(group != nullptr, "[SyncBatchNorm] the process group is null");
  set_batch_parts(std::make_shared<RankBatches>(std::move(group), "SyncBatchNorm"));
}

void SyncBatchNorm::check_input(const Tensor& x) const {
  check<ShapeError>(x.rank() >= 2 && x.rank() <= 4 && x.size(1) == num_features_,
                    "[SyncBatchNorm] expects [N, ", num_features_, "], [N, ", num_features_,
                    ", L] or [N, ", num_features_, ", H, W], got ", x.shape());
}

int convert_sync_batchnorm(nn::Module& module, const std::shared_ptr<comm::ProcessGroup>& group) {
  check(group != nullptr, "[convert_sync_batchnorm] the process group is null");
  int converted = 0;
  for (const auto& [name, part] : module.named_modules()) {
    auto* const norm = dynamic_cast<nn::BatchNorm*>(part);
    if (norm == nullptr || norm->batch_parts() != nullptr) continue;
    norm->set_batch_parts(std::make_shared<RankBatches>(group, "SyncBatchNorm " + name));
    ++converted;
  }
  return converted;
}

}  // namespace cohort
