// Construction, and forward.

#include "parallel/fsdp_runtime.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "parallel/boundary.h"

namespace cohort::parallel {

FSDPRuntime::FSDPRuntime(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
                         const FSDPOptions& options)
    : module_(module), group_(std::move(group)), options_(options) {
  form_groups();
  try {
    form_units();
  } catch (...) {
    release_parameters();
    throw;
  }
  const Stream& compute = Context::current().stream(Device::cpu());
  if (!compute.runs_inline()) {
    gathering_ = Context::current().runtime()->make_stream(Device::cpu(), "gathering");
  }
  ++Context::current().stand_ins;
}

FSDPRuntime::~FSDPRuntime() {
  release_parameters();
  --Context::current().stand_ins;
}

void FSDPRuntime::release_parameters() {
  for (FSDPUnit& unit : units_) {
    for (HookHandle& hook : unit.hooks) hook.remove();
    for (FSDPUnit::Flat& flat : unit.flats) {
      if (!flat.parameter) continue;
      for (const auto& [name, tensor] : flat.parameter->parameters()) {
        if (tensor.requires_grad()) set_grad_manager(tensor, "");
      }
    }
  }
}

void FSDPRuntime::form_groups() {
  const int size = group_->size();
  int shard = size;
  switch (options_.sharding_strategy) {
    case ShardingStrategy::full_shard:
    case ShardingStrategy::shard_grad_op:
      break;
    case ShardingStrategy::no_shard:
      shard = 1;
      break;
    case ShardingStrategy::hybrid_shard:
    case ShardingStrategy::hybrid_shard_zero2:
      shard = options_.shard_size;
      check(shard >= 1 && size % shard == 0, "[FSDP] ", options_.sharding_strategy,
            " needs a shard_size that divides the ", size, " ranks of group '", group_->name(),
            "', got ", shard);
      break;
  }
  if (shard == size) {
    shard_group_ = group_;
    return;
  }
  shard_group_ = group_->split(group_->rank() / shard, 0, group_->name() + "/shard");
  replicate_group_ =
      shard == 1 ? group_ : group_->split(group_->rank() % shard, 0, group_->name() + "/replicate");
}

void FSDPRuntime::form_units() {
  std::vector<UnitPlan> plans =
      cut_into_units(module_, options_.auto_wrap_policy, options_.ignored_parameters);
  if (options_.auto_wrap_policy.decide && plans.size() == 1 && group_->rank() == 0) {
    logging::warn(str("[FSDP] the policy ", options_.auto_wrap_policy.text,
                      " takes no module; the whole model is one unit"));
  }
  std::int64_t full = 0;
  std::int64_t gradients = 0;
  for (UnitPlan& plan : plans) {
    FSDPUnit& unit = units_.emplace_back();
    unit.module = plan.module;
    unit.name = plan.name;
    unit.root = plan.module == &module_;
    add_flats(unit, std::move(plan.parameters));
    if (!unit.root) full = std::max(full, unit.full_bytes);
    gradients = std::max(gradients, unit.gradient_bytes);
  }
  full_slots_ =
      std::make_unique<Slots>(full, 0, [this](std::int64_t bytes) { return gather_memory(bytes); });
  gradient_slots_ = std::make_unique<Slots>(gradients, 1, [this](std::int64_t bytes) {
    const MemoryCategoryScope category(MemoryCategory::gradients);
    const auto& reducing = shard_group_->size() > 1 ? shard_group_ : group_;
    return reducing->allocate({bytes}, {.dtype = u8});
  });
}

// Where the ranks share memory, each writes its part straight into the others'.
Tensor FSDPRuntime::gather_memory(std::int64_t bytes) {
  const MemoryCategoryScope category(MemoryCategory::parameters);
  return shard_group_->allocate({bytes}, {.dtype = u8});
}

// One flat buffer for each dtype and trainability that occurs.
void FSDPRuntime::add_flats(FSDPUnit& unit, std::vector<nn::NamedTensor> parameters) {
  std::map<std::pair<DType, bool>, std::vector<nn::NamedTensor>> kinds;
  for (nn::NamedTensor& named : parameters) {
    kinds[{named.tensor.dtype(), named.tensor.requires_grad()}].push_back(std::move(named));
  }
  for (auto& [kind, members] : kinds) add_flat(unit, std::move(members));
}

void FSDPRuntime::add_flat(FSDPUnit& unit, std::vector<nn::NamedTensor> parameters) {
  const DType own = parameters.front().tensor.dtype();
  const bool trained = parameters.front().tensor.requires_grad();
  const FSDPMixedPrecision& precision = options_.mixed_precision;
  const DType compute = is_floating(own) ? precision.param_dtype.value_or(own) : own;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.requires_grad()) set_grad_manager(tensor, "FSDP");
  }
  FSDPUnit::Flat& flat = unit.flats.emplace_back();
  const std::size_t count = parameters.size();
  flat.parameter = std::make_unique<FlatParameter>(
      std::move(parameters), shard_group_,
      FlatParameter::Config{.compute = compute,
                            .reduce = precision.reduce_dtype.value_or(compute),
                            .zero_copy = options_.zero_copy && shard_group_->size() > 1 &&
                                         shard_group_->shares_memory(),
                            .name = unit.label()});
  flat.arrived.resize(count);
  flat.expected.resize(count);
  flat.used.resize(count);
  if (!flat.parameter->resident()) {
    flat.full_offset = unit.full_bytes;
    unit.full_bytes += flat.parameter->full_bytes();
  }
  if (trained) {
    flat.gradient_offset = unit.gradient_bytes;
    unit.gradient_bytes += flat.parameter->full_bytes();
  }
}

void FSDPRuntime::install_hooks() {
  const std::weak_ptr<FSDPRuntime> weak = weak_from_this();
  for (FSDPUnit& unit : units_) {
    unit.hooks.push_back(unit.module->register_forward_pre_hook(
        [weak, &unit](nn::Module&, std::span<Tensor> inputs) {
          if (const auto self = weak.lock()) self->before_forward(unit, inputs);
        }));
    unit.hooks.push_back(
        unit.module->register_forward_hook([weak, &unit](nn::Module&, std::span<Tensor> outputs) {
          if (const auto self = weak.lock()) self->after_forward(unit, outputs);
        }));
    for (FSDPUnit::Flat& flat : unit.flats) {
      if (!flat.parameter->trained()) continue;
      for (std::size_t i = 0; i < flat.parameter->size(); ++i) {
        unit.hooks.push_back(register_post_accumulate_grad_hook(
            flat.parameter->parameters()[i].tensor, [weak, &unit, &flat, i](const Tensor&) {
              if (const auto self = weak.lock()) self->on_gradient(unit, flat, i);
            }));
      }
    }
  }
}

bool FSDPRuntime::keeps_after_forward() const {
  return options_.sharding_strategy == ShardingStrategy::shard_grad_op ||
         options_.sharding_strategy == ShardingStrategy::hybrid_shard_zero2 ||
         options_.sharding_strategy == ShardingStrategy::no_shard;
}

void FSDPRuntime::fence() {
  if (shard_group_->size() == 1) return;
  const bool resident = std::any_of(units_.begin(), units_.end(), [](const FSDPUnit& unit) {
    return std::any_of(unit.flats.begin(), unit.flats.end(),
                       [](const FSDPUnit::Flat& flat) { return flat.parameter->resident(); });
  });
  if (!resident) return;
  const Stream& compute = Context::current().stream(Device::cpu());
  shard_group_->barrier({.owner = "shards"}).wait();
  if (!compute.runs_inline()) compute.synchronize();
}

void FSDPRuntime::begin_forward() {
  forward_order_.clear();
  for (FSDPUnit& unit : units_) {
    for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->refresh();
  }
  fence();
  if (gathering_) gathering_.wait(Context::current().stream(Device::cpu()).record());
}

void FSDPRuntime::end_forward() {
  last_order_ = forward_order_;
  cursor_ = forward_order_.size();
  if (Context::current().grad_enabled) return;
  // No backward will follow that would do it.
  for (FSDPUnit& unit : units_) reshard(unit);
  full_slots_->trim();
  fence();
}

void FSDPRuntime::cast_inputs(const FSDPUnit& unit, std::span<Tensor> inputs) const {
  const FSDPMixedPrecision& precision = options_.mixed_precision;
  if (!precision.param_dtype) return;
  if (!(unit.root ? precision.cast_root_forward_inputs : precision.cast_forward_inputs)) return;
  for (Tensor& input : inputs) {
    if (input.defined() && is_floating(input.dtype())) input = input.to(*precision.param_dtype);
  }
}

void FSDPRuntime::before_forward(FSDPUnit& unit, std::span<Tensor> inputs) {
  if (depth_ == 0) begin_forward();
  ++depth_;
  ++unit.running;
  forward_order_.push_back(&unit);
  cast_inputs(unit, inputs);
  start_gather(unit);
  finish_gather(unit);
  if (options_.forward_prefetch) prefetch_forward(unit);
  calls_.push_back({.begin = Context::current().next_node});
}

void FSDPRuntime::after_forward(FSDPUnit& unit, std::span<Tensor> outputs) {
  FSDPCall call = calls_.back();
  calls_.pop_back();
  call.end = Context::current().next_node;
  put_boundary(outputs, [weak = weak_from_this(), &unit, call] {
    if (const auto self = weak.lock()) self->enter_backward(unit, call);
  });
  --unit.running;
  --depth_;
  if (!unit.root && !keeps_after_forward() && unit.running == 0) reshard(unit);
  if (depth_ == 0) end_forward();
}

void FSDPRuntime::prefetch_forward(FSDPUnit& unit) {
  const std::size_t position = forward_order_.size() - 1;
  if (position + 1 >= last_order_.size() || last_order_[position] != &unit) return;
  FSDPUnit& next = *last_order_[position + 1];
  if (may_start(next)) start_gather(next);
}

// At most one unit is gathered ahead of the one that computes; the root and units that contain the
// current one do not count.
bool FSDPRuntime::may_start(const FSDPUnit& unit) const {
  if (unit.state != FSDPUnit::State::sharded) return false;
  if (!options_.limit_all_gathers || keeps_after_forward()) return true;
  const auto ahead = std::count_if(units_.begin(), units_.end(), [](const FSDPUnit& other) {
    return !other.root && other.state == FSDPUnit::State::gathering;
  });
  return ahead == 0;
}

void FSDPRuntime::start_gather(FSDPUnit& unit) {
  if (unit.state != FSDPUnit::State::sharded) return;
  unit.state = FSDPUnit::State::gathering;
  if (unit.full_bytes == 0) return;
  if (unit.root) {
    unit.slot = {gather_memory(unit.full_bytes), {}};
  } else {
    unit.slot = full_slots_->take();
  }
  std::optional<StreamScope> scope;
  if (gathering_) {
    gathering_.wait(unit.slot.last_use);
    scope.emplace(gathering_);
  }
  for (FSDPUnit::Flat& flat : unit.flats) {
    if (flat.parameter->resident()) continue;
    unit.gathers.push_back(flat.parameter->gather(unit.slot.memory, flat.full_offset));
  }
}

void FSDPRuntime::finish_gather(FSDPUnit& unit) {
  if (unit.state == FSDPUnit::State::gathered) return;
  for (const comm::Work& work : std::exchange(unit.gathers, {})) work.wait();
  for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->exchange();
  unit.state = FSDPUnit::State::gathered;
}

void FSDPRuntime::reshard(FSDPUnit& unit) {
  if (unit.state == FSDPUnit::State::sharded) return;
  if (unit.state == FSDPUnit::State::gathering) finish_gather(unit);
  for (FSDPUnit::Flat& flat : unit.flats) {
    flat.parameter->exchange();
    flat.parameter->drop_gathered();
  }
  unit.state = FSDPUnit::State::sharded;
  if (unit.full_bytes == 0) return;
  unit.slot.last_use = Context::current().stream(Device::cpu()).record();
  if (unit.root) {
    unit.slot.memory.storage().record_stream(Context::current().stream(Device::cpu()));
    unit.slot = {};
  } else {
    full_slots_->give_back(std::exchange(unit.slot, {}));
  }
}

void FSDPRuntime::reset() noexcept {
  depth_ = 0;
  calls_.clear();
  for (FSDPUnit& unit : units_) {
    unit.running = 0;
    try {
      reshard(unit);
    } catch (const std::exception& error) {
      logging::warn(str("[FSDP] giving up unit '", unit.label(), "': ", error.what()));
    }
  }
  full_slots_->trim();
}

void FSDPRuntime::make_whole(FSDPUnit& unit) {
  start_gather(unit);
  finish_gather(unit);
}

void FSDPRuntime::make_rows(FSDPUnit& unit) {
  reshard(unit);
}

}  // namespace cohort::parallel
