// Memory, hooks, and forward.

#include "parallel/fsdp_runtime.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "parallel/boundary.h"

namespace cohort::parallel {
FSDPRuntime::FSDPRuntime(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
                         const FSDPOptions& options, const comm::DeviceMesh* mesh)
    : module_(module), group_(std::move(group)), options_(options), agreement_(group_) {
  if (mesh != nullptr && mesh->dimensions().size() == 2) mesh_ = *mesh;
  const std::shared_ptr<Runtime>& runtime = Context::current().runtime();
  const bool offloads = options_.cpu_offload.offload_params;
  if (offloads || !Context::current().stream(Device::cpu()).runs_inline()) {
    gathering_ = runtime->make_stream(Device::cpu(), "gathering");
  }
  if (offloads) offloading_ = runtime->make_stream(Device::cpu(), "offloading");
  MetaInitializer initializer(module_, options_, agreement_);
  try {
    form_units(initializer);
  } catch (...) {
    give_up_construction(initializer);
    throw;
  }
  ++Context::current().stand_ins;
}

FSDPRuntime::~FSDPRuntime() {
  reset();
  release_parameters();
  --Context::current().stand_ins;
}

void FSDPRuntime::release_parameters() {
  for (HookHandle& guard : guards_) guard.remove();
  for (FSDPUnit& unit : units_) {
    for (HookHandle& hook : unit.hooks) hook.remove();
    for (FSDPUnit::Flat& flat : unit.flats) {
      if (!flat.parameter) continue;
      for (const auto& [name, tensor] : flat.parameter->parameters()) {
        if (!grad_manager(tensor).empty()) set_grad_manager(tensor, "");
      }
    }
  }
}

int FSDPRuntime::ranks_per_shard(ShardingStrategy strategy) const {
  switch (strategy) {
    case ShardingStrategy::no_shard:
      return 1;
    case ShardingStrategy::hybrid_shard:
    case ShardingStrategy::hybrid_shard_zero2:
      return options_.shard_size;
    case ShardingStrategy::full_shard:
    case ShardingStrategy::shard_grad_op:
      break;
  }
  return group_->size();
}

// All ranks form the same groups in the same order: units are agreed on.
void FSDPRuntime::give_groups(FSDPUnit& unit) {
  const int shard = ranks_per_shard(unit.options.sharding_strategy);
  FSDPGroups& groups = groups_[shard];
  if (!groups.shard && (shard == group_->size() || shard == 1)) {
    groups.shard = shard == group_->size() ? group_ : group_->split(group_->rank());
    if (shard != group_->size()) groups.replicate = group_;
  } else if (!groups.shard) {
    if (!mesh_) {
      mesh_.emplace(group_, std::vector<comm::DeviceMesh::Dimension>{
                                {"replicate", group_->size() / shard}, {"shard", shard}});
    }
    groups.shard = mesh_->group(mesh_->dimensions()[1].name);
    groups.replicate = mesh_->group(mesh_->dimensions()[0].name);
  }
  unit.groups = &groups;
}

void FSDPRuntime::make_slots() {
  for (auto& [ranks, groups] : groups_) {
    std::int64_t full = 0;
    for (const FSDPUnit& unit : units_) {
      if (unit.groups != &groups) continue;
      if (!unit.root) full = std::max(full, unit.full_bytes);
    }
    groups.full = std::make_unique<Slots>(full, kFullSlots, 0, [this, &groups](std::int64_t bytes) {
      return gather_memory(groups, bytes);
    });
  }
  make_gradient_slots();
}

void FSDPRuntime::trim_full_slots() {
  for (auto& [ranks, groups] : groups_) groups.full->trim();
}

int FSDPRuntime::most_full_slots() const {
  int most = 0;
  for (const auto& [ranks, groups] : groups_) most += groups.full->most();
  return most;
}

// Where the ranks share memory, each writes its part straight into the others'.
Tensor FSDPRuntime::gather_memory(const FSDPGroups& groups, std::int64_t bytes) {
  const MemoryCategoryScope category(MemoryCategory::parameters);
  return agreement_.allocate(*collectives_, *groups.shard, bytes);
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
  const FSDPMixedPrecision& precision = unit.options.mixed_precision;
  const DType compute = is_floating(own) ? precision.param_dtype.value_or(own) : own;
  const bool offload = options_.cpu_offload.offload_params;
  const std::size_t count = parameters.size();
  std::unique_ptr<FlatParameter> made;
  std::exception_ptr error;
  try {
    made = std::make_unique<FlatParameter>(
        parameters, unit.groups->shard,
        FlatParameter::Config{.compute = compute,
                              .reduce = precision.reduce_dtype.value_or(compute),
                              .zero_copy = options_.zero_copy && !offload &&
                                           unit.groups->shard->size() > 1 &&
                                           unit.groups->shard->shares_memory(),
                              .offload = offload,
                              .keep_low_precision = precision.keep_low_precision_grads,
                              .name = unit.label()});
  } catch (const OutOfMemory&) {
    error = std::current_exception();
  }
  agreement_.settle(error, str("to shard unit '", unit.label(), "'"));
  FSDPUnit::Flat& flat = unit.flats.emplace_back();
  flat.parameter = std::move(made);
  flat.parameter->adopt();
  flat.arrived.resize(count);
  flat.expected.resize(count);
  flat.used.resize(count);
  if (!flat.parameter->resident()) {
    flat.full_offset = unit.full_bytes;
    unit.full_bytes += flat.parameter->full_bytes();
  }
}

void FSDPRuntime::install_hooks() {
  install_unit_hooks();
  install_guards();
}

// A module that computes with parameters of a unit that is not gathered has been called past that
// unit's forward.
void FSDPRuntime::install_guards() {
  std::unordered_map<const TensorImpl*, FSDPUnit*> home;
  for (FSDPUnit& unit : units_) {
    for (FSDPUnit::Flat& flat : unit.flats) {
      for (const auto& [name, tensor] : flat.parameter->parameters()) home[tensor.impl()] = &unit;
    }
  }
  const std::weak_ptr<FSDPRuntime> weak = weak_from_this();
  for (const nn::NamedModule& named : module_.named_modules()) {
    std::set<FSDPUnit*> needed;
    for (const Tensor& parameter : named.module->parameters(false)) {
      const auto unit = home.find(parameter.impl());
      if (unit != home.end()) needed.insert(unit->second);
    }
    for (FSDPUnit* unit : needed) {
      guards_.push_back(named.module->register_forward_pre_hook(
          [weak, unit, name = named.name](nn::Module&, std::span<Tensor>) {
            if (weak.expired()) return;
            check(unit->state == FSDPUnit::State::gathered, "[FSDP] module '", name,
                  "' computes with parameters of unit '", unit->label(),
                  "', which are sharded at the moment; call that unit's forward, or another of its "
                  "methods by invoke(&Module::method, ...)");
          }));
    }
  }
}

void FSDPRuntime::install_unit_hooks() {
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
    unit.hooks.push_back(unit.module->register_forward_error_hook([weak, &unit](nn::Module&) {
      if (const auto self = weak.lock()) self->forward_threw(unit);
    }));
    for (FSDPUnit::Flat& flat : unit.flats) watch_gradients(unit, flat);
  }
}

bool FSDPRuntime::fences() const {
  return std::any_of(units_.begin(), units_.end(), [](const FSDPUnit& unit) {
    return unit.groups->shard->size() > 1 &&
           std::any_of(unit.flats.begin(), unit.flats.end(),
                       [](const FSDPUnit::Flat& flat) { return flat.parameter->resident(); });
  });
}

void FSDPRuntime::fence() {
  if (!fences()) return;
  const Stream& compute = Context::current().stream(Device::cpu());
  collectives_->barrier(*group_, {.owner = "shards"}).wait();
  if (!compute.runs_inline()) compute.synchronize();
}

// What has been written to shards so far is there when gathers, or the other ranks, read them.
void FSDPRuntime::prepare_shards() {
  follow_module();
  for (auto& [ranks, groups] : groups_) groups.full->forget();
  for (FSDPUnit& unit : units_) {
    for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->refresh();
  }
  fence();
  if (gathering_) gathering_.wait(Context::current().stream(Device::cpu()).record());
}

void FSDPRuntime::begin_forward() {
  begin_record();
  forward_order_.clear();
  ended_.clear();
  prepare_shards();
}

void FSDPRuntime::end_forward() {
  last_order_ = forward_order_;
  cursor_ = ended_.size();
  if (Context::current().grad_enabled) return;
  // No backward will follow that would do it.
  for (FSDPUnit& unit : units_) reshard(unit);
  trim_full_slots();
  fence();
  recording_ = false;  // no step of training
}

void FSDPRuntime::before_forward(FSDPUnit& unit, std::span<Tensor> inputs) {
  check(!summoned_, "[FSDP] forward of unit '", unit.label(),
        "' inside summon_full_params; run it outside");
  const bool outermost = depth_ == 0;
  ++depth_;
  ++unit.running;
  calls_.push_back({.unit = &unit});  // from here on forward_threw() takes it back
  if (outermost) begin_forward();
  forward_order_.push_back(&unit);
  const std::optional<DType> outputs = cast_inputs(unit, inputs);
  start_gather(unit);
  finish_gather(unit);
  if (options_.forward_prefetch) prefetch_forward(unit);
  calls_.back().version = version_of(unit);
  calls_.back().begin = Context::current().next_node;
  calls_.back().outputs = outputs;
}

// A call of the unit has ended by an exception, which a caller inside another forward may catch.
void FSDPRuntime::forward_threw(FSDPUnit& unit) noexcept {
  if (calls_.empty() || calls_.back().unit != &unit) return;  // it had not begun, or was over
  calls_.pop_back();
  --unit.running;
  --depth_;
  if (depth_ == 0) return reset();
  if (unit.keeps_after_forward() || unit.running > 0) return;
  try {
    reshard(unit);
  } catch (const std::exception& error) {
    logging::warn(str("[FSDP] giving up unit '", unit.label(), "': ", error.what()));
  }
}

void FSDPRuntime::after_forward(FSDPUnit& unit, std::span<Tensor> outputs) {
  FSDPCall call = calls_.back();
  cast_outputs(call, outputs);
  call.end = Context::current().next_node;
  // The first output that backward comes to is the unit's; each backward anew, for a graph that is
  // kept.
  const auto entered = std::make_shared<std::uint64_t>(0);
  put_boundary(outputs, [weak = weak_from_this(), &unit, call, entered] {
    if (std::exchange(*entered, current_backward()) == current_backward()) return;
    if (const auto self = weak.lock()) self->enter_backward(unit, call);
  });
  ended_.push_back(&unit);
  calls_.pop_back();
  --unit.running;
  --depth_;
  if (!unit.keeps_after_forward() && unit.running == 0) reshard(unit);
  if (depth_ == 0) end_forward();
}

void FSDPRuntime::prefetch_forward(FSDPUnit& unit) {
  const std::size_t position = forward_order_.size() - 1;
  if (position + 1 >= last_order_.size() || last_order_[position] != &unit) return;
  FSDPUnit& next = *last_order_[position + 1];
  if (may_start(next)) try_gather(next);
}

// At most one unit is gathered ahead of the one that computes; the root and units that contain the
// current one do not count.
bool FSDPRuntime::may_start(const FSDPUnit& unit) const {
  if (unit.state != FSDPUnit::State::sharded) return false;
  if (!options_.limit_all_gathers || unit.keeps_after_forward()) return true;
  const auto ahead = std::count_if(units_.begin(), units_.end(), [](const FSDPUnit& other) {
    return !other.root && other.state == FSDPUnit::State::gathering;
  });
  return ahead == 0;
}

void FSDPRuntime::take_slot(FSDPUnit& unit) {
  try {
    if (unit.keeps_after_forward()) {  // it takes no turns
      unit.slot = unit.groups->full->take_own(unit.full_bytes);
    } else {
      unit.slot = unit.groups->full->take(&unit);
    }
  } catch (const AgreedOutOfMemory& error) {
    throw AgreedOutOfMemory(str("[FSDP] no room to gather the ", unit.full_bytes,
                                " bytes of unit '", unit.label(),
                                "'; all ranks have given this step up: ", error.what()));
  }
}

// Ahead of its need: without room, on all ranks, it is left for later.
void FSDPRuntime::try_gather(FSDPUnit& unit) {
  try {
    start_gather(unit);
  } catch (const AgreedOutOfMemory& error) {
    logging::debug(str("[FSDP] unit '", unit.label(), "' is not prefetched: ", error.what()));
  }
}

void FSDPRuntime::start_gather(FSDPUnit& unit) {
  if (unit.state != FSDPUnit::State::sharded) return;
  if (unit.full_bytes > 0) take_slot(unit);
  unit.state = FSDPUnit::State::gathering;
  if (unit.full_bytes == 0) return;
  // What forward gathered last is still there when backward comes.
  const bool there = std::exchange(unit.slot.tenant, &unit) == &unit;
  std::optional<StreamScope> scope;
  if (gathering_ && !there) {
    gathering_.wait(unit.slot.last_use);
    scope.emplace(gathering_);
  }
  for (FSDPUnit::Flat& flat : unit.flats) {
    if (flat.parameter->resident()) continue;
    if (there) {
      flat.parameter->adopt_gathered(unit.slot.memory, flat.full_offset);
      continue;
    }
    unit.gathers.push_back(
        flat.parameter->gather(*collectives_, unit.slot.memory, flat.full_offset));
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
  // A gather that fails leaves the parameters as rows all the same.
  std::exception_ptr error;
  try {
    for (const comm::Work& work : std::exchange(unit.gathers, {})) work.wait();
  } catch (...) {
    error = std::current_exception();
  }
  for (FSDPUnit::Flat& flat : unit.flats) {
    if (unit.state == FSDPUnit::State::gathered) flat.parameter->exchange();
    flat.parameter->drop_gathered();
  }
  unit.state = FSDPUnit::State::sharded;
  if (unit.full_bytes > 0) free_slot(unit);
  if (error) std::rethrow_exception(error);
}

void FSDPRuntime::free_slot(FSDPUnit& unit) {
  unit.slot.last_use = Context::current().stream(Device::cpu()).record();
  unit.slot.memory.storage().record_stream(Context::current().stream(Device::cpu()));
  unit.groups->full->give_back(std::exchange(unit.slot, {}));
}

void FSDPRuntime::reset() noexcept {
  depth_ = 0;
  recording_ = false;
  calls_.clear();
  for (FSDPUnit& unit : units_) {
    unit.running = 0;
    try {
      reshard(unit);
    } catch (const std::exception& error) {
      logging::warn(str("[FSDP] giving up unit '", unit.label(), "': ", error.what()));
    }
  }
  trim_full_slots();
}

void FSDPRuntime::unshard() {
  check(depth_ == 0 && backward_ == 0, "[unshard] must not be called inside forward or backward");
  check(!summoned_, "[unshard] must not be called inside summon_full_params");
  prepare_shards();
  try {
    for (FSDPUnit& unit : units_) start_gather(unit);
  } catch (...) {
    reset();
    throw;
  }
}

void FSDPRuntime::reshard_all() {
  check(depth_ == 0 && backward_ == 0, "[reshard] must not be called inside forward or backward");
  check(!summoned_, "[reshard] must not be called inside summon_full_params");
  for (FSDPUnit& unit : units_) reshard(unit);
  trim_full_slots();
}

void FSDPRuntime::set_reshard_after_forward(bool on, const std::string& name, bool recurse) {
  check(depth_ == 0, "[set_reshard_after_forward] must not be called inside forward");
  bool found = false;
  for (FSDPUnit& unit : units_) {
    found = found || unit.name == name;
    const bool inside = recurse && (name.empty() || unit.name.starts_with(name + '.'));
    if (unit.name == name || inside) unit.reshard_after_forward = on;
  }
  check(found, "[set_reshard_after_forward] there is no unit '", name, "'");
}

void FSDPRuntime::require_rest(const std::string& what) const {
  check(!in_forward(), "[", what, "] must not be called inside forward");
  check(!in_backward(), "[", what, "] must not be called inside backward");
  check(!rehearsing(), "[", what, "] must not be called inside plan");
  check(!summoned_, "[", what, "] must not be called inside summon_full_params");
}

void FSDPRuntime::abort(const std::string& text) noexcept {
  for (comm::ProcessGroup* group : all_groups()) collectives_->abort(*group, text);
}

}  // namespace cohort::parallel
