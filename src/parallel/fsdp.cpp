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
#include "parallel/fsdp_meta.h"
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

void check_precision(const FSDPMixedPrecision& precision) {
  for (const auto& dtype : {precision.param_dtype, precision.reduce_dtype, precision.buffer_dtype,
                            precision.output_dtype}) {
    check<DTypeError>(!dtype || is_floating(*dtype),
                      "[FSDP] mixed_precision needs floating dtypes");
  }
}

void check_strategy(const FSDPUnitOptions& unit, const std::string& name, int shard_size,
                    const comm::ProcessGroup& group) {
  const ShardingStrategy strategy = unit.sharding_strategy;
  if (strategy != ShardingStrategy::hybrid_shard &&
      strategy != ShardingStrategy::hybrid_shard_zero2) {
    return;
  }
  check(shard_size >= 1 && group.size() % shard_size == 0, "[FSDP] ", strategy, " of unit '", name,
        "' needs a shard_size that divides the ", group.size(), " ranks of group '", group.name(),
        "', got ", shard_size);
}

// Names in the options that the module does not have.
void check_names(nn::Module& module, const FSDPOptions& options) {
  const std::vector<nn::NamedTensor> parameters = module.named_parameters();
  for (const std::string& ignored : options.ignored_parameters) {
    check(std::any_of(parameters.begin(), parameters.end(),
                      [&](const nn::NamedTensor& named) { return named.name == ignored; }),
          "[FSDP] ignored_parameters names '", ignored, "', which is no parameter of the module");
  }
  const std::vector<nn::NamedModule> modules = module.named_modules();
  const auto check_module = [&](const std::string& from, const std::string& name) {
    const auto found = std::find_if(modules.begin(), modules.end(), [&](const auto& named) {
      return named.name == name && !named.module->parameters().empty();
    });
    check(found != modules.end(), "[FSDP] ", from, " names '", name,
          "', which is no module with parameters");
  };
  for (const std::string& name : options.ignored_modules) check_module("ignored_modules", name);
  for (const std::string& name : options.mixed_precision.keep_full_precision.required) {
    check_module("keep_full_precision", name);
  }
  for (const std::string& name : options.auto_wrap_policy.required) {
    check_module("the policy " + options.auto_wrap_policy.text, name);
  }
}

// What is wrong on this rank alone.
void check_arguments(nn::Module& module, const comm::ProcessGroup* group,
                     const FSDPOptions& options) {
  check(group != nullptr,
        "[FSDP] the process group is null; this rank may be no member of it (split with a negative "
        "color)");
  const std::vector<nn::NamedTensor> parameters = module.named_parameters();
  check(!parameters.empty(), "[FSDP] the module has no parameters");
  for (const auto& [name, tensor] : parameters) {
    check<NotSupported>(
        tensor.device().type == DeviceType::cpu || tensor.device().type == DeviceType::meta,
        "[FSDP] parameter '", name, "' is on ", tensor.device(), "; only the CPU is supported yet");
    check<AutogradError>(grad_manager(tensor).empty(), "[FSDP] the gradient of '", name,
                         "' is managed by ", grad_manager(tensor),
                         " already; wrap a module once, or destroy the first wrapper before");
    check(!tensor.grad().defined(), "[FSDP] parameter '", name,
          "' has a gradient already; wrap the module before the first backward, or clear it");
  }
  check_names(module, options);
  for (const UnitPlan& unit : cut_into_units(module, options)) {
    const FSDPUnitOptions own = options_of_unit(options, *unit.module, unit.name);
    check_precision(own.mixed_precision);
    check_strategy(own, unit.name, options.shard_size, *group);
  }
}

std::string text_of(const FSDPUnitOptions& options) {
  const FSDPMixedPrecision& precision = options.mixed_precision;
  return str(options.sharding_strategy, ", param_dtype ", dtype_text(precision.param_dtype),
             ", reduce_dtype ", dtype_text(precision.reduce_dtype), ", buffer_dtype ",
             dtype_text(precision.buffer_dtype), ", output_dtype ",
             dtype_text(precision.output_dtype), ", keep_low_precision_grads ",
             precision.keep_low_precision_grads, ", cast_root_forward_inputs ",
             precision.cast_root_forward_inputs, ", cast_forward_inputs ",
             precision.cast_forward_inputs);
}

std::vector<std::string> signature(nn::Module& module, const FSDPOptions& options) {
  std::vector<std::string> lines{str(
      "options: shard_size ", options.shard_size, ", backward_prefetch ", options.backward_prefetch,
      ", forward_prefetch ", options.forward_prefetch, ", limit_all_gathers ",
      options.limit_all_gathers, ", zero_copy ", options.zero_copy, ", sync_module_states ",
      options.sync_module_states, ", offload_params ", options.cpu_offload.offload_params)};
  // Values that rank 0 does not send are made by every rank alike.
  const bool makes = !options.sync_module_states && is_on_meta(module);
  if (makes && !options.param_init_fn) {
    const PhiloxState& state = Context::current().init_generator.state();
    lines.push_back(str("init_generator: seed ", state.seed, ", offset ", state.offset));
  }
  const auto place = [&](const Tensor& tensor) {
    return makes && tensor.device().type == DeviceType::meta ? ", on the meta device" : "";
  };
  for (const UnitPlan& unit : cut_into_units(module, options)) {
    lines.push_back("unit '" + unit.name +
                    "': " + text_of(options_of_unit(options, *unit.module, unit.name)));
    for (const auto& [name, tensor] : unit.parameters) {
      lines.push_back(str("parameter ", name, ": ", tensor.dtype(), tensor.shape(),
                          tensor.requires_grad() ? ", trained" : ", frozen", place(tensor)));
    }
  }
  for (const auto& [name, tensor] : module.named_buffers()) {
    lines.push_back(str("buffer ", name, ": ", tensor.dtype(), tensor.shape(), place(tensor)));
  }
  return lines;
}

// To each unit's buffer_dtype.
void convert_buffers(const UnitPlan& unit, const FSDPOptions& options) {
  const FSDPUnitOptions own = options_of_unit(options, *unit.module, unit.name);
  if (!own.mixed_precision.buffer_dtype) return;
  const DType dtype = *own.mixed_precision.buffer_dtype;
  const NoGrad no_grad;
  for (const auto& [name, tensor] : unit.buffers) {
    if (is_floating(tensor.dtype()) && tensor.dtype() != dtype) {
      tensor.impl()->swap_view(*tensor.to(dtype).impl());
    }
  }
}

}  // namespace

FSDPEngine::FSDPEngine(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
                       FSDPOptions options) {
  start(module, std::move(group), options, nullptr);
}

FSDPEngine::FSDPEngine(nn::Module& module, const comm::DeviceMesh& mesh, FSDPOptions options) {
  const auto& dimensions = mesh.dimensions();
  check(dimensions.size() <= 2, "[FSDP] a mesh of ", dimensions.size(),
        " dimensions; give its submesh() of one (shards) or two (replicas, shards)");
  const int shard_size = dimensions.back().size;
  check(options.shard_size == 0 || options.shard_size == shard_size, "[FSDP] shard_size is ",
        options.shard_size, ", and dimension '", dimensions.back().name, "' of the mesh has ",
        shard_size, " ranks");
  options.shard_size = shard_size;
  start(module, mesh.group(), options, &mesh);
}

void FSDPEngine::start(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
                       const FSDPOptions& options, const comm::DeviceMesh* mesh) {
  check_arguments(module, group.get(), options);
  require_agreement(*group, "[FSDP] models", signature(module, options));
  // Units are as they are before parameters are rows.
  const std::vector<UnitPlan> units = cut_into_units(module, options);
  runtime_.live = std::make_shared<FSDPRuntime>(module, group, options, mesh);
  if (options.sync_module_states) {
    broadcast_coalesced(*group, module.buffers(), 0, "initial state");
  }
  for (const UnitPlan& unit : units) convert_buffers(unit, options);
  runtime_->install_hooks();
}

FSDPRuntime& FSDPEngine::Runtime::require() const {
  check(live != nullptr, "[FSDP] restore() has ended this wrapper; wrap the module again");
  return *live;
}

void FSDPEngine::restore() {
  runtime_->restore();
  runtime_.live.reset();
}

FSDPEngine::~FSDPEngine() = default;

void FSDPEngine::unshard() {
  runtime_->unshard();
}

void FSDPEngine::reshard() {
  runtime_->reshard_all();
}

void FSDPEngine::discard_accumulation() {
  runtime_->discard_accumulation();
}

void FSDPEngine::set_reshard_after_forward(bool on, const std::string& unit, bool recurse) {
  runtime_->set_reshard_after_forward(on, unit, recurse);
}

void FSDPEngine::set_sync(bool on) noexcept {
  if (runtime_.live) runtime_.live->set_sync(on);
}

bool FSDPEngine::sync() const {
  return runtime_->sync();
}

void backward_on_meta(const std::vector<Tensor>& outputs) {
  std::vector<Tensor> roots;
  std::vector<Tensor> gradients;
  for (const Tensor& output : outputs) {
    if (!output.defined() || !output.requires_grad()) continue;
    roots.push_back(output);
    gradients.push_back(Tensor::empty(output.shape(), {output.dtype(), output.device(), false}));
  }
  check(!roots.empty(), "[FSDP] no output of the module takes part in a graph");
  backward(roots, gradients);
}

void FSDPEngine::set_gradient_divide_factor(double factor) {
  runtime_->set_gradient_divide_factor(factor);
}

void FSDPEngine::register_comm_hook(FSDPCommHook hook, const std::string& name) {
  runtime_->register_comm_hook(std::move(hook), name);
}

double FSDPEngine::clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite) {
  runtime_->check_idle("gradients");
  optim::check_norm_type(norm_type);
  check(max_norm >= 0, "[clip_grad_norm_] max_norm is ", max_norm, "; it cannot be negative");
  const NoGrad no_grad;
  std::vector<Tensor> all;
  Tensor total;
  const bool largest = std::isinf(norm_type);
  for (const auto& [ranks, groups] : runtime_->groups()) {
    std::vector<Tensor> parameters;
    for (const FSDPUnit& unit : runtime_->units()) {
      check(!unit.accumulated, "[clip_grad_norm_] unit '", unit.label(),
            "' keeps gradients of backwards without sync; clip after a backward outside no_sync()");
      if (unit.groups != &groups) continue;
      for (const FSDPUnit::Flat& flat : unit.flats) {
        for (const auto& [name, tensor] : flat.parameter->parameters()) {
          parameters.push_back(tensor);
        }
      }
    }
    // The ranks of a shard group have each element once; replicas have the same.
    const Tensor part = optim::norm_part(parameters, norm_type);
    const auto op = largest ? comm::ReduceOp::max : comm::ReduceOp::sum;
    groups.shard->all_reduce(part, op, {.owner = "gradient norm"}).wait();
    total = !total.defined() ? part : largest ? maximum(total, part) : total + part;
    all.insert(all.end(), parameters.begin(), parameters.end());
  }
  const double norm = optim::norm_of_parts(total, norm_type);
  check<Error>(!error_if_nonfinite || std::isfinite(norm),
               "[clip_grad_norm_] the norm of the gradients is ", norm,
               "; the loss or the learning rate is too large, or the data have such values");
  optim::clip_grads_with_norm_(all, max_norm, norm);
  return norm;
}

}  // namespace parallel
}  // namespace cohort
