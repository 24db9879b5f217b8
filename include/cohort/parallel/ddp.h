#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/nn/module.h"
#include "cohort/optim/optimizer.h"
#include "cohort/parallel/comm_hook.h"
#include "cohort/parallel/ddp_logging.h"
#include "cohort/parallel/ddp_options.h"
#include "cohort/parallel/ddp_plan.h"
#include "cohort/parallel/join.h"
#include "cohort/parallel/overlap_report.h"

namespace cohort {
namespace parallel {

class ParameterCast;
class Reducer;

// The part of DDP that does not depend on the module's type; its members are described there.
class DDPEngine {
 public:
  DDPEngine(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
            const DDPOptions& options);
  ~DDPEngine();
  DDPEngine(const DDPEngine&) = delete;
  DDPEngine& operator=(const DDPEngine&) = delete;

  // Around the module's forward; leave_forward() also when it throws.
  void enter_forward();
  void leave_forward() noexcept;
  void after_forward(std::span<Tensor> outputs);

  void set_sync(bool on) { sync_ = on; }
  bool sync() const { return sync_; }
  void count(std::int64_t units);
  void abandon_accumulation();
  void set_static_graph();
  void register_comm_hook(CommHook hook, const std::string& name);

  const std::shared_ptr<comm::ProcessGroup>& group() const { return group_; }
  void begin_join(const JoinOptions& options);
  void end_join(int last);
  void abandon_join() noexcept;

  DDPPlan plan(const optim::Optimizer* optimizer) const;
  const OverlapReport& report() const;
  DDPLoggingData logging_data() const;
  int rebuilds() const;

 private:
  std::vector<nn::NamedTensor> kept(std::vector<nn::NamedTensor> list) const;
  std::vector<Tensor> buffers() const;
  void check_trainability() const;
  void begin_step();

  nn::Module& module_;
  std::shared_ptr<comm::ProcessGroup> group_;
  DDPOptions options_;
  std::vector<nn::NamedTensor> frozen_;  // at construction
  // Null in a world of one, ReducePolicy::count aside; graphs refer to it weakly.
  std::shared_ptr<Reducer> reducer_;
  std::unique_ptr<ParameterCast> cast_;  // null without mixed_precision.param_dtype
  HookHandle input_cast_;
  std::string hook_name_;  // of the communication hook; empty without
  bool sync_ = true;
  std::int64_t iterations_ = 0;
  bool joining_ = false;
  JoinOptions join_options_;
};

// The time of one forward.
class ForwardScope {
 public:
  explicit ForwardScope(DDPEngine& engine) : engine_(engine) { engine_.enter_forward(); }
  ~ForwardScope() { engine_.leave_forward(); }
  ForwardScope(const ForwardScope&) = delete;
  ForwardScope& operator=(const ForwardScope&) = delete;

 private:
  DDPEngine& engine_;
};

}  // namespace parallel

// Must not outlive its DDP. Leaves gradients local in its scope: forwards made inside do not
// synchronise, and what their backwards add up is reduced by the first backward whose forward was
// made outside.
class NoSync {
 public:
  explicit NoSync(parallel::DDPEngine& engine) : engine_(&engine), previous_(engine.sync()) {
    engine.set_sync(false);
  }
  ~NoSync() { engine_->set_sync(previous_); }
  NoSync(const NoSync&) = delete;
  NoSync& operator=(const NoSync&) = delete;

 private:
  parallel::DDPEngine* engine_;
  bool previous_;
};

// Distributed data parallel training: every rank holds the whole model and a share of the batch;
// gradients are averaged over the ranks while backward runs (Li et al., PyTorch Distributed, VLDB
// 2020; docs/ddp.md has our rules). Called like the module itself:
//
//   cohort::DDP ddp(model, group, {.gradient_as_bucket_view = true});
//   auto loss = cross_entropy(ddp(inputs), targets);
//   loss.backward();   // when it returns, grad() of every parameter is the mean over ranks
//
// Construction is collective: all ranks compare names, shapes, dtypes, trainability and options
// (MismatchError on every rank where they differ), then take rank 0's parameters and buffers. The
// module and the group are shared; the module must keep its parameters while DDP lives. A world of
// one adds nothing to the module, but for ReducePolicy::count. Belongs to the rank's host thread.
//
// Errors in backward: a parameter that got no gradient is an AutogradError that names it. That, and
// any exception that leaves a synchronising backward before its last bucket has gone out, makes the
// same backward fail on all ranks: with the exception itself where it arose, with a RemoteError
// that quotes it elsewhere. The group and DDP go on; gradients are undefined until cleared. Under a
// communication hook, with a CollectiveModule in the module, on CUDA, after the last bucket, and
// when one backward goes through two wrapped modules, such an exception ends the group instead
// (PeerError on the other ranks).
template <typename M>
class DDP : public Joinable {
 public:
  DDP(std::shared_ptr<M> module, std::shared_ptr<comm::ProcessGroup> group, DDPOptions options = {})
      : module_(require(std::move(module))),
        engine_(std::make_unique<parallel::DDPEngine>(*module_, std::move(group), options)) {}

  // AutogradError when a parameter has been frozen or unfrozen since construction.
  template <typename... Args>
  auto operator()(Args&&... args) {
    const parallel::ForwardScope scope(*engine_);
    auto result = (*module_)(std::forward<Args>(args)...);
    std::vector<Tensor> outputs = nn::collect_tensors(result);
    engine_->after_forward(outputs);
    const Tensor* next = outputs.data();
    nn::visit_tensors([&](Tensor& tensor) { tensor = *next++; }, result);
    return result;
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }
  std::vector<Tensor> parameters() const { return module_->parameters(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

  // Gradient accumulation: `auto guard = ddp.no_sync();`.
  [[nodiscard]] NoSync no_sync() { return NoSync(*engine_); }
  // The same as a call: runs backward on the losses that `loss_of(0)` … `loss_of(micro_batches -
  // 1)` return; the last backward reduces the sum of all. InvalidArgument unless micro_batches is
  // at least 1.
  void accumulate(int micro_batches, const std::function<Tensor(int)>& loss_of) {
    check(micro_batches >= 1, "[accumulate] micro_batches must be at least 1, got ", micro_batches);
    check(static_cast<bool>(loss_of), "[accumulate] loss_of is empty");
    for (int i = 0; i + 1 < micro_batches; ++i) {
      const NoSync guard = no_sync();
      loss_of(i).backward();
    }
    loss_of(micro_batches - 1).backward();
  }

  // ReducePolicy::count: the number of samples or tokens that the coming loss sums over; counts of
  // one accumulation add up. InvalidArgument when negative, larger than 2^40, or under another
  // policy.
  void count(std::int64_t units) { engine_->count(units); }
  // After an exception in forward or in the loss: forgets the counts, and which parameters were
  // used, since the last synchronised backward. A backward that fails does so by itself.
  void abandon_accumulation() { engine_->abandon_accumulation(); }

  // Trains on uneven inputs: see cohort::join().
  void join(const std::function<void()>& body, const JoinOptions& options = {}) {
    cohort::join({this}, body, options);
  }

  // Replaces the all-reduce of each bucket by `hook`. Collective: all ranks compare `name`. Once,
  // between steps: InvalidArgument for an empty hook or a second one.
  void register_comm_hook(CommHook hook, const std::string& name = "custom") {
    engine_->register_comm_hook(std::move(hook), name);
  }
  // As DDPOptions::static_graph. InvalidArgument after a backward.
  void set_static_graph() { engine_->set_static_graph(); }

  // Buckets, collectives, bytes and memory of a step; with the optimizer, its state too.
  DDPPlan plan(const optim::Optimizer* optimizer = nullptr) const {
    return engine_->plan(optimizer);
  }
  // How the communication of the last synchronising backward was hidden.
  const OverlapReport& overlap_report() const { return engine_->report(); }
  DDPLoggingData logging_data() const { return engine_->logging_data(); }
  // How often the buckets have been rebuilt: 0, or 1 after the first synchronised step.
  int rebuilds() const { return engine_->rebuilds(); }

  const std::shared_ptr<comm::ProcessGroup>& join_group() const override {
    return engine_->group();
  }
  void begin_join(const JoinOptions& options) override { engine_->begin_join(options); }
  void end_join(int last) override { engine_->end_join(last); }
  void abandon_join() noexcept override { engine_->abandon_join(); }

 private:
  static std::shared_ptr<M> require(std::shared_ptr<M> module) {
    check(module != nullptr, "[DDP] the module is null");
    return module;
  }

  std::shared_ptr<M> module_;
  std::unique_ptr<parallel::DDPEngine> engine_;
};

}  // namespace cohort
