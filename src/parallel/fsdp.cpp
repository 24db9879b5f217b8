#include "cohort/parallel/fsdp.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <ostream>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/ops/ops.h"
#include "cohort/optim/clip_grad.h"
#include "parallel/agreement.h"
#include "parallel/broadcast.h"
#include "parallel/fsdp_runtime.h"

namespace cohort {

std::string_view name(ShardingStrategy strategy) {
  switch (strategy) {
    case ShardingStrategy::full_shard:
      return "full_shard";
    case ShardingStrategy::shard_grad_op:
      return "shard_grad_op";
    case ShardingStrategy::no_shard:
      return "no_shard";
    case ShardingStrategy::hybrid_shard:
      return "hybrid_shard";
    case ShardingStrategy::hybrid_shard_zero2:
      return "hybrid_shard_zero2";
  }
  return "unknown";
}

std::ostream& operator<<(std::ostream& out, ShardingStrategy strategy) {
  return out << name(strategy);
}

std::ostream& operator<<(std::ostream& out, BackwardPrefetch prefetch) {
  constexpr const char* kNames[] = {"none", "pre", "post"};
  return out << kNames[static_cast<std::size_t>(prefetch)];
}

namespace parallel {
namespace {

std::string dtype_text(const std::optional<DType>& dtype) {
  return dtype ? str(*dtype) : std::string("unchanged");
}

// What is wrong on this rank alone.
void check_arguments(nn::Module& module, const comm::ProcessGroup* group,
                     const FSDPOptions& options) {
  check(group != nullptr,
        "[FSDP] the process group is null; this rank may be no member of it (split with a negative "
        "color)");
  const FSDPMixedPrecision& precision = options.mixed_precision;
  for (const auto& dtype :
       {precision.param_dtype, precision.reduce_dtype, precision.buffer_dtype}) {
    check<DTypeError>(!dtype || is_floating(*dtype),
                      "[FSDP] mixed_precision needs floating dtypes");
  }
  const std::vector<nn::NamedTensor> parameters = module.named_parameters();
  check(!parameters.empty(), "[FSDP] the module has no parameters");
  for (const auto& [name, tensor] : parameters) {
    check<NotSupported>(tensor.device().type == DeviceType::cpu, "[FSDP] parameter '", name,
                        "' is on ", tensor.device(), "; only the CPU is supported yet");
    check<AutogradError>(grad_manager(tensor).empty(), "[FSDP] the gradient of '", name,
                         "' is managed by ", grad_manager(tensor),
                         " already; wrap a module once, or destroy the first wrapper before");
    check(!tensor.grad().defined(), "[FSDP] parameter '", name,
          "' has a gradient already; wrap the module before the first backward, or clear it");
  }
  for (const std::string& ignored : options.ignored_parameters) {
    check(std::any_of(parameters.begin(), parameters.end(),
                      [&](const nn::NamedTensor& named) { return named.name == ignored; }),
          "[FSDP] ignored_parameters names '", ignored, "', which is no parameter of the module");
  }
}

std::vector<std::string> signature(nn::Module& module, const FSDPOptions& options) {
  const FSDPMixedPrecision& precision = options.mixed_precision;
  std::vector<std::string> lines{
      str("options: sharding_strategy ", options.sharding_strategy, ", shard_size ",
          options.shard_size, ", backward_prefetch ", options.backward_prefetch,
          ", forward_prefetch ", options.forward_prefetch, ", limit_all_gathers ",
          options.limit_all_gathers, ", zero_copy ", options.zero_copy, ", sync_module_states ",
          options.sync_module_states),
      str("mixed precision: param_dtype ", dtype_text(precision.param_dtype), ", reduce_dtype ",
          dtype_text(precision.reduce_dtype), ", buffer_dtype ",
          dtype_text(precision.buffer_dtype))};
  for (const UnitPlan& unit :
       cut_into_units(module, options.auto_wrap_policy, options.ignored_parameters)) {
    lines.push_back("unit '" + unit.name + "'");
    for (const auto& [name, tensor] : unit.parameters) {
      lines.push_back(str("parameter ", name, ": ", tensor.dtype(), tensor.shape(),
                          tensor.requires_grad() ? ", trained" : ", frozen"));
    }
  }
  for (const auto& [name, tensor] : module.named_buffers()) {
    lines.push_back(str("buffer ", name, ": ", tensor.dtype(), tensor.shape()));
  }
  return lines;
}

void convert_buffers(nn::Module& module, DType dtype) {
  const NoGrad no_grad;
  for (const auto& [name, tensor] : module.named_buffers()) {
    if (is_floating(tensor.dtype()) && tensor.dtype() != dtype) {
      tensor.impl()->swap_view(*tensor.to(dtype).impl());
    }
  }
}

std::vector<Tensor> state_tensors(nn::Module& module, const std::vector<std::string>& ignored) {
  std::vector<Tensor> tensors;
  for (const auto& [name, tensor] : module.named_parameters()) {
    if (std::find(ignored.begin(), ignored.end(), name) == ignored.end()) tensors.push_back(tensor);
  }
  for (const auto& [name, tensor] : module.named_buffers()) tensors.push_back(tensor);
  return tensors;
}

}  // namespace

FSDPEngine::FSDPEngine(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
                       const FSDPOptions& options) {
  check_arguments(module, group.get(), options);
  require_agreement(*group, "[FSDP] models", signature(module, options));
  if (options.mixed_precision.buffer_dtype) {
    convert_buffers(module, *options.mixed_precision.buffer_dtype);
  }
  if (options.sync_module_states) {
    broadcast_coalesced(*group, state_tensors(module, options.ignored_parameters), 0,
                        "initial state");
  }
  runtime_ = std::make_shared<FSDPRuntime>(module, std::move(group), options);
  runtime_->install_hooks();
}

FSDPEngine::~FSDPEngine() = default;

void FSDPEngine::forward_threw() noexcept {
  runtime_->reset();
}

void FSDPEngine::set_sync(bool on) {
  runtime_->set_sync(on);
}

bool FSDPEngine::sync() const {
  return runtime_->sync();
}

double FSDPEngine::clip_grad_norm(double max_norm, double norm_type) {
  check(!runtime_->in_forward(), "[clip_grad_norm_] must not be called inside forward");
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  check(norm_type == 1 || norm_type == 2 || norm_type == kInfinity,
        "[clip_grad_norm_] norm_type is ", norm_type, "; 1, 2 and infinity are possible");
  const NoGrad no_grad;
  comm::ProcessGroup& group = *runtime_->shard_group();
  std::vector<Tensor> parameters;
  std::vector<Tensor> gradients;
  for (const FSDPUnit& unit : runtime_->units()) {
    for (const FSDPUnit::Flat& flat : unit.flats) {
      for (const auto& [name, tensor] : flat.parameter->parameters()) {
        parameters.push_back(tensor);
        if (tensor.grad().defined() && tensor.numel() > 0) gradients.push_back(tensor.grad());
      }
    }
  }
  double total = 0;
  if (norm_type == 2) {
    // Sums of squares are exact, so that the parts' sum does not depend on the cuts.
    Tensor limbs = exact_square_sum(gradients);
    group.all_reduce(limbs, comm::ReduceOp::sum, {.owner = "gradient norm"}).wait();
    total = exact_sum_root(limbs, f64).item();
  } else {
    const Tensor norm = Tensor::scalar(optim::grad_norm(parameters, norm_type));
    group
        .all_reduce(norm, norm_type == 1 ? comm::ReduceOp::sum : comm::ReduceOp::max,
                    {.owner = "gradient norm"})
        .wait();
    total = norm.item();
  }
  optim::clip_grads_with_norm_(parameters, max_norm, total);
  return total;
}

void FSDPEngine::summon(const std::function<void()>& body, bool writeback) {
  check(!runtime_->in_forward(), "[summon_full_params] must not be called inside forward");
  const NoGrad no_grad;
  // Whole copies of this rank's own, so that what the body writes is nobody else's.
  struct Copy {
    FlatParameter* flat;
    std::size_t index;
    Tensor whole;
    Tensor row;  // holds the parameter's view while it is whole
  };
  std::vector<Copy> copies;
  runtime_->fence();
  for (FSDPUnit& unit : runtime_->units()) {
    runtime_->make_whole(unit);
    for (FSDPUnit::Flat& flat : unit.flats) {
      for (std::size_t i = 0; i < flat.parameter->size(); ++i) {
        copies.push_back({flat.parameter.get(), i, {}, {}});
        const Tensor& parameter = flat.parameter->parameters()[i].tensor;
        copies.back().whole = parameter.detach().clone().to(flat.parameter->dtype());
      }
    }
    runtime_->make_rows(unit);
  }
  runtime_->fence();
  const auto swap = [&] {
    for (Copy& copy : copies) {
      copy.flat->parameters()[copy.index].tensor.impl()->swap_view(*copy.whole.impl());
    }
  };
  swap();
  try {
    body();
  } catch (...) {
    swap();
    throw;
  }
  swap();
  if (!writeback) return;
  for (const Copy& copy : copies) {
    const FlatLayout::Range part = copy.flat->local(copy.index);
    if (part.size() == 0) continue;
    const Tensor whole = copy.whole.contiguous();
    Tensor row = copy.flat->parameters()[copy.index].tensor.detach();
    row.copy_(whole.as_strided({part.size()}, {1}, whole.storage_offset() + part.begin));
  }
}

std::vector<nn::NamedTensor> FSDPEngine::full_state(bool rank0_only) {
  const NoGrad no_grad;
  const bool wanted = !rank0_only || runtime_->group()->rank() == 0;
  std::vector<nn::NamedTensor> gathered;
  runtime_->fence();
  for (FSDPUnit& unit : runtime_->units()) {
    runtime_->make_whole(unit);
    for (FSDPUnit::Flat& flat : unit.flats) {
      for (const auto& [name, tensor] : flat.parameter->parameters()) {
        if (!wanted) continue;
        gathered.push_back({name, tensor.detach().clone().to(flat.parameter->dtype())});
      }
    }
    runtime_->make_rows(unit);
  }
  runtime_->fence();
  if (!wanted) return {};
  // In the module's own order, with what FSDP has left alone.
  std::vector<nn::NamedTensor> state;
  for (const auto& [name, tensor] : runtime_->module().named_state()) {
    const auto found =
        std::find_if(gathered.begin(), gathered.end(),
                     [&](const nn::NamedTensor& entry) { return entry.name == name; });
    state.push_back({name, found != gathered.end() ? found->tensor : tensor.detach().clone()});
  }
  return state;
}

void FSDPEngine::load_full_state(const std::vector<nn::NamedTensor>& state) {
  check(!runtime_->in_forward(), "[load_full_state] must not be called inside forward");
  const NoGrad no_grad;
  struct Target {
    std::string name;
    Shape shape;
    Tensor tensor;
    FlatLayout::Range part;
  };
  std::vector<Target> targets;
  for (FSDPUnit& unit : runtime_->units()) {
    for (FSDPUnit::Flat& flat : unit.flats) {
      for (std::size_t i = 0; i < flat.parameter->size(); ++i) {
        const nn::NamedTensor& named = flat.parameter->parameters()[i];
        targets.push_back(
            {named.name, flat.parameter->shape(i), named.tensor, flat.parameter->local(i)});
      }
    }
  }
  for (const auto& [name, tensor] : runtime_->module().named_state()) {
    const auto same = [&](const Target& target) { return target.name == name; };
    if (std::none_of(targets.begin(), targets.end(), same)) {
      targets.push_back({name, tensor.shape(), tensor, {0, tensor.numel()}});
    }
  }
  std::string wrong;
  for (const auto& [name, tensor] : state) {
    const auto found = std::find_if(targets.begin(), targets.end(),
                                    [&](const Target& target) { return target.name == name; });
    if (found == targets.end()) {
      wrong += str("; '", name, "' is unknown");
    } else if (tensor.shape() != found->shape) {
      wrong += str("; '", name, "' has shape ", tensor.shape(), " instead of ", found->shape);
    }
  }
  std::vector<const Tensor*> sources;
  for (const Target& target : targets) {
    const auto found = std::find_if(state.begin(), state.end(), [&](const nn::NamedTensor& entry) {
      return entry.name == target.name;
    });
    if (found == state.end()) wrong += str("; '", target.name, "' is missing");
    sources.push_back(found == state.end() ? nullptr : &found->tensor);
  }
  check(wrong.empty(), "[load_full_state] the state does not fit", wrong);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    const Target& target = targets[i];
    if (target.part.size() == 0) continue;
    const Tensor whole = sources[i]->contiguous();
    const Tensor part =
        whole.as_strided({target.part.size()}, {1}, whole.storage_offset() + target.part.begin);
    Tensor row = target.tensor.detach();
    row.copy_(part.as_strided(row.shape(), contiguous_strides(row.shape()), part.storage_offset()));
  }
}

FSDPPlan FSDPEngine::plan() const {
  FSDPPlan plan;
  plan.world_size = runtime_->group()->size();
  plan.shard_size = runtime_->shard_group()->size();
  const bool twice = runtime_->options().sharding_strategy == ShardingStrategy::full_shard ||
                     runtime_->options().sharding_strategy == ShardingStrategy::hybrid_shard;
  std::int64_t largest_full = 0;
  std::int64_t largest_gradient = 0;
  std::int64_t root_full = 0;
  for (const FSDPUnit& unit : runtime_->units()) {
    FSDPPlan::Unit& row = plan.units.emplace_back();
    row.name = unit.name;
    for (const FSDPUnit::Flat& flat : unit.flats) {
      const FlatParameter& parameter = *flat.parameter;
      FSDPPlan::Flat& entry = row.flats.emplace_back();
      entry.dtype = parameter.dtype();
      entry.compute = parameter.config().compute;
      entry.trained = parameter.trained();
      entry.resident = parameter.resident();
      entry.elements = parameter.layout().total();
      entry.shard = parameter.layout().shard();
      for (const auto& [name, tensor] : parameter.parameters()) entry.parameters.push_back(name);
      const auto shard_bytes =
          entry.shard * static_cast<std::int64_t>(item_size(parameter.dtype()));
      plan.parameter_bytes += shard_bytes;
      if (!parameter.resident()) {
        const std::int64_t times = twice && !unit.root ? 2 : 1;
        plan.all_gathers += times;
        plan.gathered_bytes += times * parameter.full_bytes();
      } else if (parameter.config().compute != parameter.dtype()) {
        plan.parameter_bytes += parameter.full_bytes() / plan.shard_size;
      }
      if (!parameter.trained()) continue;
      plan.gradient_bytes += shard_bytes;
      plan.adam_bytes += 2 * shard_bytes;
      const auto whole = parameter.layout().total() *
                         static_cast<std::int64_t>(item_size(parameter.config().reduce));
      if (plan.shard_size > 1) {
        ++plan.reduce_scatters;
        plan.reduced_bytes += whole;
        if (plan.shard_size < plan.world_size) {
          ++plan.all_reduces;
          plan.reduced_bytes += whole / plan.shard_size;
        }
      } else if (plan.world_size > 1) {
        ++plan.all_reduces;
        plan.reduced_bytes += whole;
      }
    }
    (unit.root ? root_full : largest_full) =
        std::max(unit.root ? root_full : largest_full, unit.full_bytes);
    largest_gradient = std::max(largest_gradient, unit.gradient_bytes);
  }
  plan.gathered_peak_bytes = root_full + (twice ? 2 * largest_full : 0);
  if (!twice) {
    for (const FSDPUnit& unit : runtime_->units()) {
      if (!unit.root && unit.full_bytes > 0) plan.gathered_peak_bytes += largest_full;
    }
  }
  plan.gradient_peak_bytes = 3 * largest_gradient;
  return plan;
}

}  // namespace parallel

std::ostream& operator<<(std::ostream& out, const FSDPPlan& plan) {
  out << "world " << plan.world_size << ", shards over " << plan.shard_size << " ranks\n";
  for (const FSDPPlan::Unit& unit : plan.units) {
    for (const FSDPPlan::Flat& flat : unit.flats) {
      out << "unit " << (unit.name.empty() ? "root" : unit.name) << ": " << flat.parameters.size()
          << " parameters, " << flat.elements << " elements of " << flat.dtype;
      if (flat.compute != flat.dtype) out << " (computed in " << flat.compute << ')';
      out << ", " << flat.shard << " per rank" << (flat.trained ? "" : ", frozen")
          << (flat.resident ? ", not moved" : "") << '\n';
    }
  }
  out << "a step: " << plan.all_gathers << " all_gather of " << plan.gathered_bytes << " bytes, "
      << plan.reduce_scatters << " reduce_scatter and " << plan.all_reduces << " all_reduce of "
      << plan.reduced_bytes << " bytes\n"
      << "at rest: parameters " << plan.parameter_bytes << ", gradients " << plan.gradient_bytes
      << ", Adam " << plan.adam_bytes << " bytes; beside that at most " << plan.gathered_peak_bytes
      << " gathered and " << plan.gradient_peak_bytes << " of whole gradients\n";
  return out;
}

}  // namespace cohort
