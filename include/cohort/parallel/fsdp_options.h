#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/dtype.h"
#include "cohort/nn/norm.h"
#include "cohort/parallel/wrap.h"

namespace cohort {

namespace nn {
class Module;
}

// What the ranks share out (Rajbhandari et al., ZeRO, SC 2020; Zhao et al., PyTorch FSDP, VLDB
// 2023). Every strategy gives the same numbers.
enum class ShardingStrategy : std::uint8_t {
  full_shard,     // parameters, gradients, optimizer state; parameters are gathered for each use
  shard_grad_op,  // the same, but parameters stay gathered from forward to backward
  no_shard,       // nothing: every rank holds everything, as under DDP
  hybrid_shard,   // full_shard within a shard group, replicated over the groups
  hybrid_shard_zero2,  // shard_grad_op within a shard group, replicated over the groups
};
std::string_view name(ShardingStrategy strategy);
std::ostream& operator<<(std::ostream& out, ShardingStrategy strategy);

// When the parameters that backward needs next are gathered.
enum class BackwardPrefetch : std::uint8_t {
  none,  // when they are needed
  pre,   // before the current unit's gradients are computed: most overlap
  post,  // after they have been handed to the reduction: less memory
};
std::ostream& operator<<(std::ostream& out, BackwardPrefetch prefetch);

struct FSDPMixedPrecision {
  // Parameters are gathered, and computed with, in this dtype; shards keep their own.
  std::optional<DType> param_dtype = {};
  // Gradients are reduced in this dtype; by default in that of their computation.
  std::optional<DType> reduce_dtype = {};
  // Floating buffers are converted to this dtype, for good.
  std::optional<DType> buffer_dtype = {};
  // Gradients of the shards stay in reduce_dtype instead of being converted to the parameters'
  // dtype. cohort::optim reads them as they are.
  bool keep_low_precision_grads = false;
  // Floating inputs of the root, and of every unit (the root included), are converted to
  // param_dtype.
  bool cast_root_forward_inputs = true;
  bool cast_forward_inputs = false;
  // Floating outputs of a unit are converted to this dtype.
  std::optional<DType> output_dtype = {};
  // Modules that become units of their own without mixed precision: inputs are converted to their
  // parameters' dtype, outputs back to the inputs'. Of FSDPOptions' alone, and only where a dtype
  // above is set. PyTorch's _module_classes_to_ignore.
  WrapPolicy keep_full_precision = wrap::by_type<nn::BatchNorm>();
};

// Where parameters rest.
struct FSDPCPUOffload {
  // Shards and their gradients lie in host memory, and the optimizer steps there. A unit's shard is
  // copied to the device for each gather, and its gradient back after the reduction.
  bool offload_params = false;
};

// What may differ from unit to unit.
struct FSDPUnitOptions {
  ShardingStrategy sharding_strategy = ShardingStrategy::full_shard;
  FSDPMixedPrecision mixed_precision = {};
};

// Options of FSDP, with PyTorch's names and defaults where it has them. All ranks must give the
// same ones; construction compares them.
struct FSDPOptions {
  ShardingStrategy sharding_strategy = ShardingStrategy::full_shard;
  // Which modules become units of their own, besides the root. Empty: the root alone.
  WrapPolicy auto_wrap_policy = {};
  FSDPMixedPrecision mixed_precision = {};
  // Switches zero_copy off: host memory is not where devices compute.
  FSDPCPUOffload cpu_offload = {};
  // Fills the parameters and buffers of one module, not of its children, that was made on the meta
  // device: they have memory by then, without values. Called children first. Empty:
  // Module::reset_parameters().
  std::function<void(nn::Module& module)> param_init_fn = {};
  BackwardPrefetch backward_prefetch = BackwardPrefetch::pre;
  // Gathers the next unit of the last step's order while the current one computes.
  bool forward_prefetch = false;
  // At most one unit is being gathered ahead at a time.
  bool limit_all_gathers = true;
  // Rank 0's parameters and buffers replace the others' at construction, but ignored ones.
  bool sync_module_states = false;
  // Where the ranks of a group share memory, the parameters lie in it once, and gathering copies
  // nothing. False: they are gathered by copying, as between hosts.
  bool zero_copy = true;
  // Given a unit's module, its name ("" for the root) and the options above, those that the unit
  // shall have. Empty: the same for all.
  std::function<FSDPUnitOptions(const nn::Module& module, const std::string& name,
                                FSDPUnitOptions options)>
      unit_options = {};
  // hybrid strategies: ranks per shard group; must divide the group's size.
  int shard_size = 0;
  // Names of parameters that FSDP leaves alone; every rank keeps and trains its own.
  std::vector<std::string> ignored_parameters = {};
  // Names of modules of which FSDP leaves all parameters alone. None of them becomes a unit.
  std::vector<std::string> ignored_modules = {};
};

}  // namespace cohort
