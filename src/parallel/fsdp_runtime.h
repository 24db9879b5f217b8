#pragma once

#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/device_mesh.h"
#include "cohort/comm/process_group.h"
#include "cohort/core/stream.h"
#include "cohort/nn/module.h"
#include "cohort/parallel/comm_hook.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/fsdp_agreement.h"
#include "parallel/fsdp_collectives.h"
#include "parallel/fsdp_meta.h"
#include "parallel/fsdp_unit.h"
#include "parallel/slots.h"

namespace cohort::parallel {

// Runs a step over sharded units.
//
// Forward of a unit gathers its parameters before, and drops them after, unless its strategy keeps
// them or it is the root. Backward gathers them again when it reaches the unit's outputs, and when
// all its gradients are there hands them to a reduction and drops the parameters. Gathers that are
// foreseen start before they are needed. At the end of backward the ranks tell each other which
// parameters were used, which is also the fence behind which they may write their shards again.
//
// Belongs to the rank's host thread.
class FSDPRuntime : public std::enable_shared_from_this<FSDPRuntime> {
 public:
  // Units that drop their parameters after forward take turns in so many pieces of memory: one that
  // computes, and one that is gathered ahead.
  static constexpr int kFullSlots = 2;

  // Without a mesh, hybrid strategies make their own of options.shard_size.
  FSDPRuntime(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
              const FSDPOptions& options, const comm::DeviceMesh* mesh);
  ~FSDPRuntime();
  FSDPRuntime(const FSDPRuntime&) = delete;
  FSDPRuntime& operator=(const FSDPRuntime&) = delete;
  // After construction: the hooks refer to it weakly.
  void install_hooks();

  // When forward has ended by an exception: everything is at rest again.
  void reset() noexcept;
  // Collective. Parameters become whole again; only destruction may follow. AgreedOutOfMemory, and
  // no change, when a rank has no room.
  void restore();

  void set_sync(bool on) { sync_ = on; }
  bool sync() const { return sync_; }
  bool in_forward() const { return depth_ > 0; }
  bool in_backward() const { return backward_ != 0; }
  // While parameters are whole outside a step, none can run.
  void set_summoned(bool on) { summoned_ = on; }
  bool summoned() const { return summoned_; }
  // InvalidArgument inside forward or backward.
  void check_idle(const char* what) const;
  void set_gradient_divide_factor(double factor);
  void register_comm_hook(FSDPCommHook hook, const std::string& name);

  nn::Module& module() { return module_; }
  const std::shared_ptr<comm::ProcessGroup>& group() const { return group_; }
  const FSDPOptions& options() const { return options_; }
  std::deque<FSDPUnit>& units() { return units_; }
  const std::deque<FSDPUnit>& units() const { return units_; }

  const std::map<int, FSDPGroups>& groups() const { return groups_; }

  // See FSDP. Shards are written after reshard_all() alone.
  void unshard();
  void reshard_all();
  void discard_accumulation();
  void set_reshard_after_forward(bool on, const std::string& unit, bool recurse);

  // Whether parameters lie in memory that the ranks share.
  bool fences() const;
  // Collective where memory is shared: all ranks' shards are up to date, or nobody reads them any
  // more.
  void fence();

  // What may only be called at rest: InvalidArgument inside forward, backward or a summon.
  void require_rest(const std::string& what) const;
  // Ends all groups, for an exception that keeps this rank from its part of a collective step.
  void abort(const std::string& text) noexcept;

  int most_full_slots() const;

  // What a step does: the counters of this rank from the outermost forward to the end of backward.
  struct StepRecord {
    bool complete = false;
    MemoryStats before;
    MemoryStats after;  // with the peaks in between
    std::vector<comm::GroupStats> groups_before;
    std::vector<comm::GroupStats> groups_after;  // of all_groups()
  };
  // Records the next step. Peak counters of the allocator begin anew with it.
  void record_next_step() { step_record_.emplace(); }
  const std::optional<StepRecord>& step_record() const { return step_record_; }
  // Buffers and ignored parameters.
  std::vector<Tensor> unsharded() const;
  // The group, and those that were split from it for units.
  std::vector<comm::ProcessGroup*> all_groups() const;

  // Runs `step`, a forward and backward, on the meta device, without the other ranks: as often as
  // it takes to be like any later step. The record of the last run and its collectives.
  // InvalidArgument while a step or an accumulation is under way. Afterwards everything is as
  // before, whatever happened.
  StepRecord rehearse(const std::function<void()>& step,
                      std::vector<FSDPPlan::Collective>& collectives);
  bool rehearsing() const { return collectives_ != &group_collectives_; }

 private:
  struct Reduction {
    FSDPUnit::Flat* flat;
    Tensor row;  // this rank's part
    std::vector<comm::Work> works;
    BucketWork hooked;                // by a communication hook
    const Storage* source = nullptr;  // of the whole gradient, to be compared alone
    std::vector<bool> used;           // on this rank
    // When `row` is in host memory, and the device's is not read any more.
    Event offloaded = {};
    Tensor on_device = {};  // of a rehearsal, until its end
  };

  void release_parameters();
  void give_up_construction(MetaInitializer& initializer) noexcept;
  void sync_parameters(const std::vector<nn::NamedTensor>& parameters) const;
  int ranks_per_shard(ShardingStrategy strategy) const;
  void give_groups(FSDPUnit& unit);
  void form_units(MetaInitializer& initializer);
  void form_unit(UnitPlan plan);
  void make_slots();
  void add_flats(FSDPUnit& unit, std::vector<nn::NamedTensor> parameters);
  void add_flat(FSDPUnit& unit, std::vector<nn::NamedTensor> parameters);
  void lay_out_gradients(FSDPUnit& unit);
  void make_gradient_slots();
  void trim_gradient_slots();
  void watch_gradients(FSDPUnit& unit, FSDPUnit::Flat& flat);

  void install_unit_hooks();
  void install_guards();

  // Counters.
  void begin_record();
  void end_record();

  // Forward.
  void before_forward(FSDPUnit& unit, std::span<Tensor> inputs);
  void forward_threw(FSDPUnit& unit) noexcept;
  void after_forward(FSDPUnit& unit, std::span<Tensor> outputs);
  void prepare_shards();
  void begin_forward();
  void end_forward();
  void follow_module();
  std::optional<DType> cast_inputs(const FSDPUnit& unit, std::span<Tensor> inputs) const;
  static void cast_outputs(const FSDPCall& call, std::span<Tensor> outputs);
  void prefetch_forward(FSDPUnit& unit);

  // Gathered memory.
  Tensor gather_memory(const FSDPGroups& groups, std::int64_t bytes);
  void take_slot(FSDPUnit& unit);
  void try_gather(FSDPUnit& unit);
  void trim_full_slots();
  bool may_start(const FSDPUnit& unit) const;
  void start_gather(FSDPUnit& unit);
  void finish_gather(FSDPUnit& unit);
  void reshard(FSDPUnit& unit);
  void free_slot(FSDPUnit& unit);

  // Backward.
  static std::uint64_t version_of(const FSDPUnit& unit);
  void enter_backward(FSDPUnit& unit, const FSDPCall& call);
  void arm();
  void begin_unit_backward(FSDPUnit& unit);
  void on_gradient(FSDPUnit& unit, FSDPUnit::Flat& flat, std::size_t parameter);
  void end_if_complete(FSDPUnit& unit);
  void end_unit_backward(FSDPUnit& unit);
  void prefetch_backward(FSDPUnit& unit);
  void finish_backward();
  void fail(const std::exception_ptr& error);
  void give_up_backward() noexcept;
  void drop_reductions() noexcept;

  // Reduction.
  Slots::Slot take_for_gradients(Slots& slots, const FSDPUnit& unit, std::int64_t bytes);
  void offload(Reduction& reduction, const Event& ready);
  void end_gradients(FSDPUnit& unit);
  void convert(FSDPUnit& unit, FSDPUnit::Flat& flat, const Tensor& whole);
  Tensor reduced_row(const FSDPUnit& unit, const FSDPUnit::Flat& flat) const;
  void reduce(FSDPUnit& unit);
  static void give_back(Slots* slots, Slots::Slot& slot, Event last_use);
  Reduction start_reduction(const FSDPUnit& unit, FSDPUnit::Flat& flat, const Tensor& whole);
  void start_through_hook(const FSDPUnit& unit, const FSDPUnit::Flat& flat, const Tensor& whole,
                          Reduction& reduction);
  Tensor result_of(const Reduction& reduction) const;
  void exchange_used();
  void finish_reductions();

  nn::Module& module_;
  const std::shared_ptr<comm::ProcessGroup> group_;
  const FSDPOptions options_;
  RankAgreement agreement_;
  std::optional<comm::DeviceMesh> mesh_;
  std::map<int, FSDPGroups> groups_;  // by ranks per shard; addresses stay
  std::deque<FSDPUnit> units_;        // children before their parents; addresses stay
  // Where the compute stream is queued, or shards come from the host: what gathers wait for.
  Stream gathering_;
  Stream offloading_;  // takes gradients to the host; null without cpu_offload
  Tensor used_flags_;  // for exchange_used(): a byte, and one for each parameter

  std::vector<HookHandle> guards_;
  bool sync_ = true;
  bool summoned_ = false;
  int depth_ = 0;                         // of nested forwards
  std::vector<FSDPCall> calls_;           // that have begun and not ended, inner last
  std::vector<FSDPUnit*> forward_order_;  // of the running step
  std::vector<FSDPUnit*> last_order_;     // of the one before
  // Calls in the order of their ends, which backward goes through from the last to the first: a
  // unit that contains others comes to its outputs before them.
  std::vector<FSDPUnit*> ended_;
  std::size_t cursor_ = 0;      // in ended_: backward has come to it
  std::uint64_t backward_ = 0;  // the one that is armed; 0: none
  bool accumulating_ = false;   // it computes gradients of parameters
  std::vector<Reduction> reductions_;
  double divide_factor_ = 0;  // 0: the number of ranks
  FSDPCommHook hook_;
  std::string hook_name_;  // empty without

  GroupCollectives group_collectives_;
  FSDPCollectives* collectives_ = &group_collectives_;
  std::optional<StepRecord> step_record_;  // of the next step, or the last one recorded
  bool recording_ = false;                 // a step that is recorded has begun
};

}  // namespace cohort::parallel
