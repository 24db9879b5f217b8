#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/comm/device_mesh.h"
#include "cohort/comm/process_group.h"
#include "cohort/core/memory.h"
#include "cohort/nn/module.h"
#include "cohort/parallel/comm_hook.h"
#include "cohort/parallel/fsdp_options.h"
#include "cohort/parallel/fsdp_plan.h"
#include "cohort/parallel/fsdp_state.h"

namespace cohort {
namespace parallel {

class FSDPRuntime;

// A copy with tensors of the same shapes and dtypes on the meta device.
template <typename T>
T on_meta(const T& value) {
  T copy = value;
  nn::visit_tensors(
      [](Tensor& tensor) {
        if (!tensor.defined()) return;
        tensor =
            Tensor::empty(tensor.shape(), {tensor.dtype(), Device::meta(), tensor.requires_grad()});
      },
      copy);
  return copy;
}

// backward() from those that take part in a graph, each with a gradient of its own size.
void backward_on_meta(const std::vector<Tensor>& outputs);

// The part of FSDP that does not depend on the module's type.
class FSDPEngine {
 public:
  FSDPEngine(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group, FSDPOptions options);
  FSDPEngine(nn::Module& module, const comm::DeviceMesh& mesh, FSDPOptions options);
  ~FSDPEngine();
  FSDPEngine(const FSDPEngine&) = delete;
  FSDPEngine& operator=(const FSDPEngine&) = delete;

  // InvalidArgument after restore().
  void before_forward() const { runtime_.require(); }
  void restore();
  void unshard();
  void reshard();
  void discard_accumulation();
  void set_reshard_after_forward(bool on, const std::string& unit, bool recurse);
  void set_sync(bool on) noexcept;
  bool sync() const;
  double clip_grad_norm(double max_norm, double norm_type, bool error_if_nonfinite);
  void set_gradient_divide_factor(double factor);
  void register_comm_hook(FSDPCommHook hook, const std::string& name);
  void summon(const std::function<void()>& body, const SummonOptions& options);
  void for_each_full_tensor(const std::function<void(const std::string&, const Tensor&)>& fn,
                            bool rank0_only);
  std::vector<nn::NamedTensor> full_state(bool rank0_only);
  ShardedState sharded_state() const;
  void load_full_state(const std::vector<nn::NamedTensor>& state);
  void load_sharded_state(std::span<const ShardedState> states);
  OptimState full_optim_state(const optim::Optimizer& optimizer, bool rank0_only);
  OptimState sharded_optim_state(const optim::Optimizer& optimizer) const;
  void load_full_optim_state(optim::Optimizer& optimizer, const OptimState& state);
  void load_sharded_optim_state(optim::Optimizer& optimizer, std::span<const OptimState> states);
  const FSDPPlan& plan();
  const FSDPPlan& plan(const std::function<void()>& step);
  FSDPPlanCheck check_plan() const;

 private:
  void start(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
             const FSDPOptions& options, const comm::DeviceMesh* mesh);

  // Null after restore(); its use is InvalidArgument then.
  struct Runtime {
    std::shared_ptr<FSDPRuntime> live;
    FSDPRuntime& require() const;
    FSDPRuntime* operator->() const { return &require(); }
    FSDPRuntime& operator*() const { return require(); }
  };
  Runtime runtime_;
  std::optional<FSDPPlan> planned_;
};

}  // namespace parallel

// Fully sharded data parallel training: parameters, gradients and optimizer state are shared out
// over the ranks of a group, and gathered unit by unit while they are needed (docs/fsdp.md). Called
// like the module itself:
//
//   cohort::FSDP fsdp(model, group, {.auto_wrap_policy = cohort::wrap::by_type<Block>()});
//   cohort::optim::AdamW optimizer(fsdp.parameters(), {.lr = 3e-4});   // after wrapping
//   auto loss = cross_entropy(fsdp(inputs), targets);
//   loss.backward();   // grad() of a parameter is the mean over ranks, of this rank's part of it
//   optimizer.step();
//
// The module's parameters stay the same tensors under the same names. Between steps each is a row:
// the elements that this rank owns, possibly none. Inside the forward of its unit, and in backward,
// it is whole. The last element of its gradient seen, a unit hands its gradients to the reduction.
//
// Construction, forward, backward and the members marked so are collective: all ranks call them in
// the same order. MismatchError on every rank when models or options differ. Errors in forward
// leave FSDP ready for the next step; an exception in a synchronising backward ends the group for
// all ranks (PeerError with its text on the others). Belongs to the rank's host thread.
template <typename M>
class FSDP {
 public:
  FSDP(std::shared_ptr<M> module, std::shared_ptr<comm::ProcessGroup> group,
       const FSDPOptions& options = {})
      : module_(require(std::move(module))),
        engine_(std::make_unique<parallel::FSDPEngine>(*module_, std::move(group), options)) {}
  // Over a mesh of one dimension, or of two: replicas by shards, of which the hybrid strategies
  // make use. InvalidArgument for others, and for a shard_size that is not the mesh's.
  FSDP(std::shared_ptr<M> module, const comm::DeviceMesh& mesh, const FSDPOptions& options = {})
      : module_(require(std::move(module))),
        engine_(std::make_unique<parallel::FSDPEngine>(*module_, mesh, options)) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    engine_->before_forward();
    return (*module_)(std::forward<Args>(args)...);
  }
  // Another method of the module as if it were forward: fsdp.invoke(&Net::encode, x). Called
  // directly it would find rows.
  template <typename Method, typename... Args>
  auto invoke(Method method, Args&&... args) {
    engine_->before_forward();
    return module_->invoke(method, std::forward<Args>(args)...);
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }
  // The rows, for an optimizer whose update is element-wise.
  std::vector<Tensor> parameters() const { return module_->parameters(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

  // Collective. Starts to gather all units, ahead of a forward; the optimizer must not step in
  // between. OutOfMemory on all ranks, and nothing is gathered, when one has no room for all of
  // them. InvalidArgument inside forward, backward or summon_full_params.
  void unshard() { engine_->unshard(); }
  // Drops gathered parameters between a forward and its backward, which gathers them again, and
  // frees their memory. All ranks do the same. InvalidArgument inside forward or backward.
  void reshard() { engine_->reshard(); }
  // From the next forward on, the unit of that name ("" for the root), and with `recurse` those
  // inside it, drop their parameters after forward (as under full_shard), or keep them until
  // backward (shard_grad_op). The root always keeps its own. All ranks do the same. InvalidArgument
  // when there is no such unit, and inside forward.
  void set_reshard_after_forward(bool on, const std::string& unit = "", bool recurse = true) {
    engine_->set_reshard_after_forward(on, unit, recurse);
  }

  // Gradient accumulation without communication of gradients: backwards made while the guard lives
  // keep whole gradients on each rank; the next one outside reduces the sum. The guard must not
  // outlive the FSDP.
  class NoSync {
   public:
    explicit NoSync(parallel::FSDPEngine& engine) : engine_(&engine), previous_(engine.sync()) {
      engine.set_sync(false);
    }
    ~NoSync() {
      if (engine_ != nullptr) engine_->set_sync(previous_);
    }
    NoSync(NoSync&& other) noexcept
        : engine_(std::exchange(other.engine_, nullptr)), previous_(other.previous_) {}
    NoSync& operator=(NoSync&&) = delete;

   private:
    parallel::FSDPEngine* engine_;
    bool previous_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(*engine_); }
  // Forgets the whole gradients that backwards without sync have kept, which zero_grad() does not
  // see: after a micro-batch that failed, say. All ranks do the same. InvalidArgument inside
  // forward or backward.
  void discard_accumulation() { engine_->discard_accumulation(); }

  // Collective. Scales the gradients so that their norm over all ranks' parts, as one vector, is at
  // most max_norm, and returns the norm they had: the same number on every rank, whatever the
  // sharding, and that of a single process. norm_type is positive, or infinity. Ignored parameters
  // are left out. InvalidArgument inside forward and backward, and while gradients of no_sync()
  // have not been reduced. With `error_if_nonfinite` an Error on all ranks, before any gradient is
  // changed, when the norm is infinite or NaN.
  double clip_grad_norm_(double max_norm, double norm_type = 2, bool error_if_nonfinite = false) {
    return engine_->clip_grad_norm(max_norm, norm_type, error_if_nonfinite);
  }

  // Collective. From the next backward on the ranks' gradients are added and divided by `factor`,
  // once, instead of by the number of ranks: 1 gives the sum. InvalidArgument when it is not
  // positive and finite, under a communication hook, and inside forward or backward.
  void set_gradient_divide_factor(double factor) { engine_->set_gradient_divide_factor(factor); }

  // Replaces the reduction of each flat gradient by `hook` (comm_hook.h, docs/fsdp.md). Collective:
  // all ranks compare `name`. Once, between steps: InvalidArgument for an empty hook, a second one,
  // or beside a gradient divide factor. A world of one calls no hook.
  void register_comm_hook(FSDPCommHook hook, const std::string& name = "custom") {
    engine_->register_comm_hook(std::move(hook), name);
  }

  // Collective. Runs `body`, without recording gradients, while all parameters are whole. What it
  // writes to elements that this rank owns stays, with writeback; the rest is dropped. Of ranks
  // that own the same elements the first one's count. When it throws on any rank, nothing is
  // written on any (RemoteError on the others). InvalidArgument inside forward, backward or another
  // summon; forward and backward are refused in the body.
  void summon_full_params(const std::function<void()>& body, const SummonOptions& options = {}) {
    engine_->summon(body, options);
  }

  // States (docs/fsdp_states.md), under the module's own names. Not inside forward, backward or
  // summon_full_params: InvalidArgument.
  //
  // Collective. Calls `fn` with every parameter and persistent buffer, whole, on the CPU, in memory
  // of its own, one after the other in the module's order: a state can be written without ever
  // being held. With `rank0_only` it is called on rank 0 alone, and the others hold nothing. An
  // exception of `fn` goes through once all tensors are done; RemoteError on the other ranks then.
  void for_each_full_tensor(
      const std::function<void(const std::string& name, const Tensor& tensor)>& fn,
      bool rank0_only = false) {
    engine_->for_each_full_tensor(fn, rank0_only);
  }
  // Collective. All of them as a list; with `rank0_only` an empty one on the other ranks.
  std::vector<nn::NamedTensor> full_state(bool rank0_only = false) {
    return engine_->full_state(rank0_only);
  }
  // This rank's part. Not collective, copies nothing: the tensors are the parameters' own memory
  // and follow every update. Also between forward and backward.
  ShardedState sharded_state() const { return engine_->sharded_state(); }

  // Collective. Takes a whole state, of full_state() or of the bare module, at any number of ranks.
  // Either every rank brings it, or rank 0 alone and the others an empty list: then tensors are
  // broadcast one by one. All ranks load or none: InvalidArgument that lists all entries that are
  // missing, unknown or misshapen, RemoteError on ranks that found nothing wrong.
  void load_full_state(const std::vector<nn::NamedTensor>& state) {
    engine_->load_full_state(state);
  }
  // Collective, errors as above, of parts that do not cover this rank's, or overlap, too. Takes
  // what this rank needs out of the parts that the ranks of another run held: of all, or at least
  // of those that hold something of it. A lone state is this rank's own. Memory stays where it is.
  void load_sharded_state(std::span<const ShardedState> states) {
    engine_->load_sharded_state(states);
  }
  void load_sharded_state(const ShardedState& own) { load_sharded_state(std::span(&own, 1)); }

  // The same of the state of an optimizer over these parameters. Those of its parameters that are
  // not the module's are left alone.
  OptimState full_optim_state(const optim::Optimizer& optimizer, bool rank0_only = false) {
    return engine_->full_optim_state(optimizer, rank0_only);
  }
  OptimState sharded_optim_state(const optim::Optimizer& optimizer) const {
    return engine_->sharded_optim_state(optimizer);
  }
  // Sets learning rates, step counts and state; a parameter that the state knows as never stepped
  // becomes so. Parameter groups must be the same.
  void load_full_optim_state(optim::Optimizer& optimizer, const OptimState& state) {
    engine_->load_full_optim_state(optimizer, state);
  }
  void load_sharded_optim_state(optim::Optimizer& optimizer, std::span<const OptimState> states) {
    engine_->load_sharded_optim_state(optimizer, states);
  }
  void load_sharded_optim_state(optim::Optimizer& optimizer, const OptimState& own) {
    load_sharded_optim_state(optimizer, std::span(&own, 1));
  }

  // Collective. The end of sharding: all parameters become whole again on every rank, tensors of
  // the bare module, without gradients, and its hooks go. The wrapper is of no use then; the module
  // can be wrapped again. OutOfMemory on all ranks, and no change, when one has no room for the
  // whole model. Without it parameters stay rows when the wrapper goes: a destructor must not wait
  // for other ranks.
  void restore() { engine_->restore(); }

  // Units, layouts, collectives and bytes of a step (fsdp_plan.h): from the layouts alone, without
  // activations.
  const FSDPPlan& plan() { return engine_->plan(); }
  // The same from a step that is run on the meta device, activations included: the module on
  // tensors like these, and backward from all of its outputs. Nothing is communicated, computed or
  // changed; a module that looks at values (item()) cannot be planned so. InvalidArgument while
  // units are gathered, inside a step, and while gradients of no_sync() are kept.
  template <typename... Inputs>
  requires(sizeof...(Inputs) > 0 &&
           !std::is_invocable_v<std::tuple_element_t<0, std::tuple<Inputs..., int>>>)
      const FSDPPlan& plan(const Inputs&... example_inputs) {
    return engine_->plan([&] {
      std::tuple<Inputs...> inputs(parallel::on_meta(example_inputs)...);
      auto outputs = std::apply([&](auto&... values) { return (*this)(values...); }, inputs);
      parallel::backward_on_meta(nn::collect_tensors(outputs));
    });
  }
  // The same with a step of your own: it calls this FSDP on meta tensors and returns the loss.
  const FSDPPlan& plan(const std::function<Tensor()>& step) {
    return engine_->plan([&] { step().backward(); });
  }
  // Compares the last plan with the counters of the first step (a forward and a synchronising
  // backward) that ran after it, with gradients that were cleared before. The peak counters of the
  // allocator began anew with that step. InvalidArgument without a plan, or a step.
  FSDPPlanCheck check_plan() const { return engine_->check_plan(); }

 private:
  static std::shared_ptr<M> require(std::shared_ptr<M> module) {
    check(module != nullptr, "[FSDP] the module is null");
    return module;
  }

  std::shared_ptr<M> module_;
  std::unique_ptr<parallel::FSDPEngine> engine_;
};

// The counters of what cpu_offload keeps in host memory for the current rank.
MemoryStats offloaded_memory_stats();

}  // namespace cohort
