#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/nn/module.h"
#include "cohort/optim/optimizer.h"
#include "cohort/parallel/ddp_plan.h"
#include "cohort/parallel/overlap_report.h"

namespace cohort {

// Options of DDP, with PyTorch's names and defaults where it has them. All ranks must give the same
// ones; construction compares them.
struct DDPOptions {
  // A bucket holds at most this many MiB of gradients, unless one module alone has more.
  double bucket_cap_mb = 25;
  // Cap of the bucket that is ready last, in MiB: its reduction is the one that backward cannot
  // hide, so it is kept small. 0 treats it like the others.
  double last_bucket_cap_mb = 1;
  // True: gradients live in the buckets and are reduced there. False: each parameter keeps a
  // gradient of its own, which is copied into its bucket and back.
  bool gradient_as_bucket_view = false;
  // Rank 0's buffers replace the others' before each forward that will synchronise gradients, in
  // training mode only: evaluation starts no collective.
  bool broadcast_buffers = true;
  // False: nothing is broadcast at construction; the caller answers for equal replicas.
  bool init_sync = true;
  // False: all buckets are reduced after backward instead of during it. For measuring.
  bool overlap = true;
  // True: buckets are filled from the last registered parameter to the first, the order in which
  // most models' gradients arrive. False: from the first. For measuring.
  bool reverse_registration = true;
  // Rebuild the buckets once, after the first synchronised backward, by order of arrival.
  bool rebuild_buckets = true;
};

namespace parallel {

class Reducer;

// The part of DDP that does not depend on the module's type.
class DDPEngine {
 public:
  DDPEngine(nn::Module& module, std::shared_ptr<comm::ProcessGroup> group,
            const DDPOptions& options);
  ~DDPEngine();
  DDPEngine(const DDPEngine&) = delete;
  DDPEngine& operator=(const DDPEngine&) = delete;

  void before_forward();
  void after_forward(const std::vector<Tensor>& outputs);
  void set_sync(bool on);
  bool sync() const { return sync_; }
  DDPPlan plan(const optim::Optimizer* optimizer) const;
  const OverlapReport& report() const;
  int rebuilds() const;

 private:
  nn::Module& module_;
  std::shared_ptr<comm::ProcessGroup> group_;
  DDPOptions options_;
  std::shared_ptr<Reducer> reducer_;  // null in a world of one; graphs refer to it weakly
  bool sync_ = true;
};

}  // namespace parallel

// Leaves gradients local in its scope: forwards made inside do not synchronise, and what their
// backwards add up is reduced by the first backward whose forward was made outside.
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
// one adds nothing to the module. Belongs to the rank's host thread.
//
// Errors in backward: a parameter that got no gradient is an AutogradError that names it, and ends
// the group for all ranks; any exception that leaves a synchronising backward does so, with its
// text. After that the group is unusable; gradients are undefined until cleared.
template <typename M>
class DDP {
 public:
  DDP(std::shared_ptr<M> module, std::shared_ptr<comm::ProcessGroup> group, DDPOptions options = {})
      : module_(std::move(module)),
        engine_(std::make_unique<parallel::DDPEngine>(*module_, std::move(group), options)) {}

  template <typename... Args>
  auto operator()(Args&&... args) {
    engine_->before_forward();
    auto result = (*module_)(std::forward<Args>(args)...);
    engine_->after_forward(nn::collect_tensors(result));
    return result;
  }

  M& module() { return *module_; }
  const M& module() const { return *module_; }
  std::vector<Tensor> parameters() const { return module_->parameters(); }
  void train(bool on = true) { module_->train(on); }
  void eval() { module_->eval(); }

  // Gradient accumulation: `auto guard = ddp.no_sync();`.
  [[nodiscard]] NoSync no_sync() { return NoSync(*engine_); }
  // Buckets, collectives, bytes and memory of a step; with the optimizer, its state too.
  DDPPlan plan(const optim::Optimizer* optimizer = nullptr) const {
    return engine_->plan(optimizer);
  }
  // How the communication of the last synchronising backward was hidden.
  const OverlapReport& overlap_report() const { return engine_->report(); }
  // How often the buckets have been rebuilt: 0, or 1 after the first synchronised step.
  int rebuilds() const { return engine_->rebuilds(); }

 private:
  std::shared_ptr<M> module_;
  std::unique_ptr<parallel::DDPEngine> engine_;
};

}  // namespace cohort
