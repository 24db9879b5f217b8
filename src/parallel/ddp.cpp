#include "cohort/parallel/ddp.h"

#include <iomanip>
#include <ostream>
#include <sstream>
#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "parallel/agreement.h"
#include "parallel/broadcast.h"
#include "parallel/reducer.h"

namespace cohort::parallel {
namespace {

std::vector<nn::NamedTensor> trainable(const nn::Module& module) {
  std::vector<nn::NamedTensor> result;
  for (nn::NamedTensor& named : module.named_parameters()) {
    if (named.tensor.requires_grad()) result.push_back(std::move(named));
  }
  return result;
}

void check_options(const DDPOptions& options) {
  // Written so that a NaN fails.
  check(options.bucket_cap_mb > 0, "[DDP] bucket_cap_mb must be positive, got ",
        options.bucket_cap_mb);
  check(options.last_bucket_cap_mb >= 0, "[DDP] last_bucket_cap_mb must not be negative, got ",
        options.last_bucket_cap_mb);
}

// What all ranks must have in common, one line each.
std::vector<std::string> signature(const nn::Module& module, const DDPOptions& options) {
  std::vector<std::string> lines;
  std::ostringstream flags;
  flags << "options: bucket_cap_mb " << options.bucket_cap_mb << ", last_bucket_cap_mb "
        << options.last_bucket_cap_mb << ", gradient_as_bucket_view "
        << options.gradient_as_bucket_view << ", broadcast_buffers " << options.broadcast_buffers
        << ", init_sync " << options.init_sync << ", overlap " << options.overlap
        << ", reverse_registration " << options.reverse_registration << ", rebuild_buckets "
        << options.rebuild_buckets;
  lines.push_back(flags.str());
  for (const auto& [name, tensor] : module.named_parameters()) {
    lines.push_back(str("parameter ", name, ": ", tensor.dtype(), tensor.shape(),
                        tensor.requires_grad() ? ", trained" : ", frozen"));
  }
  for (const auto& [name, tensor] : module.named_buffers()) {
    lines.push_back(str("buffer ", name, ": ", tensor.dtype(), tensor.shape()));
  }
  return lines;
}

std::vector<Tensor> defined_tensors(const std::vector<nn::NamedTensor>& list) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : list) {
    if (tensor.defined()) tensors.push_back(tensor);
  }
  return tensors;
}

}  // namespace

DDPEngine::DDPEngine(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
                     const DDPOptions& options)
    : module_(module), group_(std::move(group)), options_(options) {
  check(group_ != nullptr, "[DDP] the process group is null");
  check_options(options_);
  for (const auto& [name, tensor] : module_.named_parameters()) {
    check<NotSupported>(tensor.device().type != DeviceType::meta, "[DDP] parameter '", name,
                        "' is on the meta device; bring the model to life with to_empty(device) "
                        "before wrapping it");
  }
  if (group_->size() == 1) return;
  require_agreement(*group_, "[DDP] models", signature(module_, options_));
  if (options_.init_sync) {
    std::vector<Tensor> state = defined_tensors(module_.named_parameters());
    for (Tensor& buffer : defined_tensors(module_.named_buffers())) {
      state.push_back(std::move(buffer));
    }
    broadcast_coalesced(*group_, state, 0, "initial state");
  }
  std::vector<nn::NamedTensor> parameters = trainable(module_);
  check(!parameters.empty(),
        "[DDP] no parameter of the module requires a gradient; there is nothing to reduce");
  reducer_ = std::make_shared<Reducer>(std::move(parameters), group_, options_);
}

DDPEngine::~DDPEngine() = default;

void DDPEngine::set_sync(bool on) {
  sync_ = on;
}

void DDPEngine::before_forward() {
  if (!reducer_ || !Context::current().grad_enabled) return;
  if (sync_) reducer_->rebuild_if_due();
  if (sync_ && options_.broadcast_buffers && module_.is_training()) {
    const std::vector<Tensor> buffers = defined_tensors(module_.named_buffers());
    if (!buffers.empty()) broadcast_coalesced(*group_, buffers, 0, "buffers");
  }
}

void DDPEngine::after_forward(const std::vector<Tensor>& outputs) {
  if (!reducer_) return;
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad() || output.is_leaf()) continue;
    register_hook(output,
                  [reducer = std::weak_ptr<Reducer>(reducer_), sync = sync_](const Tensor&) {
                    if (const auto alive = reducer.lock()) alive->begin_backward(sync);
                    return Tensor();
                  });
  }
}

const OverlapReport& DDPEngine::report() const {
  static const OverlapReport none;
  return reducer_ ? reducer_->report() : none;
}

int DDPEngine::rebuilds() const {
  return reducer_ ? reducer_->rebuilds() : 0;
}

DDPPlan DDPEngine::plan(const optim::Optimizer* optimizer) const {
  DDPPlan plan;
  plan.world_size = group_->size();
  for (const auto& [name, tensor] : module_.named_parameters()) {
    plan.parameter_bytes += static_cast<std::int64_t>(tensor.bytes());
    const bool own_gradient = !reducer_ || !options_.gradient_as_bucket_view;
    if (tensor.requires_grad() && own_gradient) {
      plan.gradient_bytes += static_cast<std::int64_t>(tensor.bytes());
    }
  }
  if (optimizer != nullptr) plan.optimizer_bytes = optimizer->planned_state_bytes();
  if (!reducer_) return plan;
  for (const Reducer::Bucket& bucket : reducer_->buckets()) {
    DDPPlan::Bucket& row = plan.buckets.emplace_back();
    row.dtype = bucket.dtype;
    row.elements = bucket.layout.elements;
    row.bytes = row.elements * static_cast<std::int64_t>(item_size(row.dtype));
    for (const int index : bucket.parameters) {
      row.parameters.push_back(reducer_->parameters()[static_cast<std::size_t>(index)].name);
    }
    plan.bucket_bytes += row.bytes;
  }
  plan.all_reduces = static_cast<std::int64_t>(plan.buckets.size());
  plan.logical_bytes = plan.bucket_bytes;
  plan.exchanged_bytes = 2 * plan.bucket_bytes * (plan.world_size - 1) / plan.world_size;
  if (options_.broadcast_buffers) {
    const BroadcastCost cost = broadcast_cost(defined_tensors(module_.named_buffers()));
    plan.broadcasts = cost.broadcasts;
    plan.logical_bytes += cost.bytes;
    plan.exchanged_bytes += cost.bytes;
  }
  return plan;
}

}  // namespace cohort::parallel
