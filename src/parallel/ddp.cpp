#include "cohort/parallel/ddp.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/nn/norm.h"
#include "cohort/parallel/collective_module.h"
#include "parallel/agreement.h"
#include "parallel/boundary.h"
#include "parallel/broadcast.h"
#include "parallel/ddp_signature.h"
#include "parallel/join_meeting.h"
#include "parallel/parameter_cast.h"
#include "parallel/reducer.h"

namespace cohort::parallel {
namespace {

bool has_collectives(nn::Module& module) {
  const std::vector<nn::NamedModule> modules = module.named_modules();
  return std::any_of(modules.begin(), modules.end(), [](const nn::NamedModule& entry) {
    const auto* norm = dynamic_cast<const nn::BatchNorm*>(entry.module);
    return dynamic_cast<const CollectiveModule*>(entry.module) != nullptr ||
           (norm != nullptr && norm->batch_parts() != nullptr);
  });
}

std::vector<Tensor> tensors_of(const std::vector<nn::NamedTensor>& list) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : list) tensors.push_back(tensor);
  return tensors;
}

void convert_buffers(const std::vector<nn::NamedTensor>& buffers, DType dtype) {
  const NoGrad no_grad;
  for (const auto& [name, tensor] : buffers) {
    if (is_floating(tensor.dtype()) && tensor.dtype() != dtype) {
      tensor.impl()->swap_view(*tensor.to(dtype).impl());
    }
  }
}

}  // namespace

DDPEngine::DDPEngine(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
                     const DDPOptions& options)
    : module_(module), group_(std::move(group)), options_(options) {
  check(group_ != nullptr,
        "[DDP] the process group is null; this rank may be no member of it (split with a negative "
        "color)");
  check_options(module_, options_);
  const std::vector<nn::NamedTensor> parameters = kept(module_.named_parameters());
  require_agreement(*group_, "[DDP] models",
                    signature(parameters, kept(module_.named_buffers()), options_));
  std::vector<nn::NamedTensor> trained;
  for (const nn::NamedTensor& named : parameters) {
    (named.tensor.requires_grad() ? trained : frozen_).push_back(named);
  }
  const MixedPrecision& precision = options_.mixed_precision;
  if (precision.buffer_dtype) {
    convert_buffers(kept(module_.named_buffers()), *precision.buffer_dtype);
  }
  if (options_.init_sync) {
    std::vector<Tensor> state = tensors_of(parameters);
    for (Tensor& buffer : buffers()) state.push_back(std::move(buffer));
    broadcast_coalesced(*group_, state, 0, "initial state");
  }
  if (group_->size() > 1 || options_.reduce_policy == ReducePolicy::count) {
    check(!trained.empty(),
          "[DDP] no parameter of the module requires a gradient; there is nothing to reduce");
    reducer_ =
        std::make_shared<Reducer>(std::move(trained), group_, options_, has_collectives(module_));
  }
  if (!precision.param_dtype) return;
  cast_ = std::make_unique<ParameterCast>(tensors_of(parameters), *precision.param_dtype);
  if (!precision.cast_forward_inputs) return;
  input_cast_ = module_.register_forward_pre_hook(
      [dtype = *precision.param_dtype](nn::Module&, std::span<Tensor> inputs) {
        for (Tensor& input : inputs) {
          if (input.defined() && is_floating(input.dtype())) input = input.to(dtype);
        }
      });
}

DDPEngine::~DDPEngine() {
  input_cast_.remove();
}

// Without what the options ignore.
std::vector<nn::NamedTensor> DDPEngine::kept(std::vector<nn::NamedTensor> list) const {
  std::erase_if(list, [&](const nn::NamedTensor& named) {
    return !named.tensor.defined() || std::find(options_.ignored.begin(), options_.ignored.end(),
                                                named.name) != options_.ignored.end();
  });
  return list;
}

std::vector<Tensor> DDPEngine::buffers() const {
  return tensors_of(kept(module_.named_buffers()));
}

void DDPEngine::check_trainability() const {
  constexpr const char* kHint = "; decide before DDP is built, and build it anew after a change";
  for (const auto& [name, tensor] : reducer_->parameters()) {
    // Frozen and unfrozen again, it has lost its hooks, and its manager with them.
    check<AutogradError>(!grad_manager(tensor).empty(), "[DDP] parameter '", name,
                         "' has been frozen since DDP was built (rank ", group_->rank(), ")",
                         kHint);
  }
  for (const auto& [name, tensor] : frozen_) {
    check<AutogradError>(!tensor.requires_grad(), "[DDP] parameter '", name,
                         "' was frozen when DDP was built and no longer is (rank ", group_->rank(),
                         "); its gradient would stay local", kHint);
  }
}

void DDPEngine::enter_forward() {
  if (Context::current().grad_enabled) {
    ++iterations_;
    if (reducer_) {
      check_trainability();
      if (sync_) begin_step();
    }
  }
  if (cast_) cast_->exchange();
}

// The collectives that come before a forward whose backward will synchronise.
void DDPEngine::begin_step() {
  int root = 0;
  if (joining_) {
    const std::vector<bool> live = meet_in_join(*group_, join_options_);
    const auto count = static_cast<int>(std::count(live.begin(), live.end(), true));
    reducer_->scale().divide_by(join_options_.divide_by_initial_world_size ? 0 : count);
    root = static_cast<int>(std::find(live.begin(), live.end(), true) - live.begin());
    // Buckets are built by all ranks or none.
    if (count == group_->size()) reducer_->rebuild_if_due();
  } else {
    reducer_->rebuild_if_due();
  }
  if (options_.broadcast_buffers && module_.is_training()) {
    broadcast_coalesced(*group_, buffers(), root, "buffers");
  }
}

void DDPEngine::leave_forward() noexcept {
  if (cast_) cast_->restore();
}

void DDPEngine::after_forward(std::span<Tensor> outputs) {
  if (!reducer_ || !Context::current().grad_enabled) return;
  for (Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    // A parameter that forward returns as it is: a hook on the leaf would outlive this forward.
    if (output.is_leaf()) put_boundary({&output, 1}, [] {});
    register_hook(output,
                  [reducer = std::weak_ptr<Reducer>(reducer_), sync = sync_](const Tensor&) {
                    if (const auto alive = reducer.lock()) alive->begin_backward(sync);
                    return Tensor();
                  });
  }
}

void DDPEngine::count(std::int64_t units) {
  check(options_.reduce_policy == ReducePolicy::count,
        "[DDP] count() needs reduce_policy = count, and it is ", options_.reduce_policy);
  reducer_->scale().count(units);
}

void DDPEngine::abandon_accumulation() {
  if (reducer_) reducer_->abandon_accumulation();
}

void DDPEngine::set_static_graph() {
  if (reducer_) reducer_->set_static_graph();
}

void DDPEngine::register_comm_hook(CommHook hook, const std::string& name) {
  check(static_cast<bool>(hook), "[DDP] the communication hook is empty");
  check(!name.empty(), "[DDP] a communication hook needs a name");
  check(hook_name_.empty(), "[DDP] register_comm_hook() can only be called once: '", hook_name_,
        "' is registered");
  check(options_.reduce_policy == ReducePolicy::mean, "[DDP] a communication hook and ",
        "reduce_policy = ", options_.reduce_policy,
        " exclude each other: the hook decides what gradients become");
  if (reducer_) reducer_->check_idle("a communication hook");
  require_agreement(*group_, "[DDP] communication hooks", {"communication hook " + name});
  hook_name_ = name;
  if (reducer_) reducer_->set_hook(std::move(hook), name);
}

void DDPEngine::begin_join(const JoinOptions& options) {
  check(!joining_, "[join] this DDP is inside a join already; joins do not nest");
  check(options.divide_by_initial_world_size || hook_name_.empty(),
        "[join] divide_by_initial_world_size = false and the communication hook '", hook_name_,
        "' exclude each other: the hook decides what gradients become");
  check(options.divide_by_initial_world_size || options_.reduce_policy == ReducePolicy::mean,
        "[join] divide_by_initial_world_size = false and reduce_policy = ", options_.reduce_policy,
        " exclude each other: only a mean divides by a number of ranks");
  joining_ = true;
  join_options_ = options;
}

void DDPEngine::end_join(int last) {
  abandon_join();
  std::vector<Tensor> state = tensors_of(kept(module_.named_parameters()));
  for (Tensor& buffer : buffers()) state.push_back(std::move(buffer));
  broadcast_coalesced(*group_, state, last, "state after join");
  if (reducer_) reducer_->adopt_progress(last);
}

void DDPEngine::abandon_join() noexcept {
  joining_ = false;
  if (reducer_) reducer_->scale().divide_by(0);
}

const OverlapReport& DDPEngine::report() const {
  static const OverlapReport none;
  return reducer_ ? reducer_->report() : none;
}

int DDPEngine::rebuilds() const {
  return reducer_ ? reducer_->rebuilds() : 0;
}

DDPLoggingData DDPEngine::logging_data() const {
  DDPLoggingData data;
  data.world_size = group_->size();
  data.rank = group_->rank();
  data.backend = group_->backend();
  data.iterations = iterations_;
  data.comm_hook = hook_name_;
  if (reducer_) reducer_->fill(data);
  return data;
}

DDPPlan DDPEngine::plan(const optim::Optimizer* optimizer) const {
  DDPPlan plan;
  plan.world_size = group_->size();
  for (const auto& [name, tensor] : module_.named_parameters()) {
    plan.parameter_bytes += static_cast<std::int64_t>(tensor.bytes());
    if (tensor.requires_grad()) plan.gradient_bytes += static_cast<std::int64_t>(tensor.bytes());
  }
  if (optimizer != nullptr) plan.optimizer_bytes = optimizer->planned_state_bytes();
  if (!reducer_) return plan;
  const BucketSet& buckets = reducer_->buckets();
  for (const BucketSet::Bucket& bucket : buckets.buckets()) {
    DDPPlan::Bucket& row = plan.buckets.emplace_back();
    row.dtype = bucket.dtype;
    row.elements = bucket.layout.elements;
    row.bytes = row.elements * static_cast<std::int64_t>(item_size(row.dtype));
    for (const int index : bucket.parameters) {
      const nn::NamedTensor& named = reducer_->parameters()[static_cast<std::size_t>(index)];
      row.parameters.push_back(named.name);
      if (buckets.is_view(index)) {
        plan.gradient_bytes -= static_cast<std::int64_t>(named.tensor.bytes());
      }
    }
    plan.bucket_bytes += static_cast<std::int64_t>(bucket.memory.bytes());
  }
  plan.all_reduces = static_cast<std::int64_t>(plan.buckets.size());
  plan.logical_bytes = plan.bucket_bytes;
  plan.exchanged_bytes = 2 * plan.bucket_bytes * (plan.world_size - 1) / plan.world_size;
  if (options_.broadcast_buffers) {
    const BroadcastCost cost = broadcast_cost(buffers());
    plan.broadcasts = cost.broadcasts;
    plan.logical_bytes += cost.bytes;
    plan.exchanged_bytes += cost.bytes;
  }
  return plan;
}

}  // namespace cohort::parallel
