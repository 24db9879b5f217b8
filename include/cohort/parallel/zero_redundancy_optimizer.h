#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"
#include "cohort/optim/optimizer.h"

namespace cohort {

// What an optimizer knows of one parameter. Without state when it has never been stepped.
struct ParameterState {
  std::int64_t step_count = 0;
  std::vector<optim::NamedState> state;
};

namespace parallel {

// Which rank updates which parameter of an optimizer, and the exchange of what they updated; the
// part of ZeroRedundancyOptimizer that does not depend on the optimizer's type.
class ZeroPartition {
 public:
  explicit ZeroPartition(std::shared_ptr<comm::ProcessGroup> group);

  const std::shared_ptr<comm::ProcessGroup>& group() const { return group_; }
  // The rank that updates `param`. InvalidArgument when it is not the optimizer's.
  int owner(const optim::Optimizer& optimizer, const Tensor& param);
  // Compares the parameters over the ranks when there are new ones. Collective then.
  void agree(const optim::Optimizer& optimizer);
  // All ranks get every parameter from its owner. Collective.
  void exchange();
  // `state_names` of each parameter, in order. Collective; empty but on `root`.
  std::vector<ParameterState> gather(const optim::Optimizer& optimizer,
                                     const std::vector<std::vector<std::string>>& state_names,
                                     int root);
  // Of an exception that keeps this rank from the exchange.
  void abandon(const std::exception& error) noexcept;

 private:
  void assign(const optim::Optimizer& optimizer);
  void make_buffer();
  template <typename Fn>
  void for_each_piece(int rank, std::int64_t begin, Fn&& fn) const;

  std::shared_ptr<comm::ProcessGroup> group_;
  std::unordered_map<const TensorImpl*, int> owners_;
  std::vector<std::vector<Tensor>> parts_;  // of each rank, in the optimizer's order
  std::vector<std::int64_t> loads_;         // bytes of each part, as they travel
  std::size_t groups_ = 0;                  // that have owners
  std::size_t agreed_ = 0;                  // that the ranks have compared
  Device device_ = Device::cpu();
  Tensor buffer_;  // [ranks, bytes of a round]
};

}  // namespace parallel

// ZeRO stage 1 (Rajbhandari et al., 2020) for any optimizer: each rank keeps the state of a part of
// the parameters and updates that part; then the ranks exchange what they updated. Gradients must
// be equal on all ranks, as DDP leaves them. It is an `Optim` in all else: groups, options, set_lr
// and schedules, add_param_group, zero_grad, planned_state_bytes (of this rank). The parameters
// that result are those of `Optim` alone, bit for bit, since every parameter is updated whole.
//
//   ZeroRedundancyOptimizer<optim::Adam> optimizer(ddp.parameters(), group,
//                                                  optim::AdamOptions{.lr = 1e-3});
//
// Partition: group by group, the parameters by size in bytes, largest first (equal ones in order of
// registration), each to the rank with the least so far (the lowest of equals).
//
// Construction is collective, and so is step(): parameters travel as bytes, in all-gathers of up to
// 4 MiB per rank. All ranks make the same calls with the same groups and rates: construction, and
// the first step after add_param_group, compare shapes, dtypes, groups and rates (MismatchError on
// all ranks). An exception that keeps a rank from the exchange ends the group. state() and
// step_count() know of this rank's part alone. NotSupported inside join(): a rank without inputs
// could not update its part.
template <std::derived_from<optim::Optimizer> Optim>
class ZeroRedundancyOptimizer final : public Optim {
 public:
  // `params`: tensors or parameter groups, whatever Optim takes; `args`: its options. The group is
  // shared. InvalidArgument when it is null.
  template <typename Params, typename... Args>
  ZeroRedundancyOptimizer(const Params& params, std::shared_ptr<comm::ProcessGroup> group,
                          Args&&... args)
      : Optim(params, std::forward<Args>(args)...),
        partition_(std::make_unique<parallel::ZeroPartition>(std::move(group))) {
    partition_->agree(*this);
  }

  bool has_all_state() const override { return partition_->group()->size() == 1; }
  // The rank that keeps the state of `param`.
  int owner(const Tensor& param) const { return partition_->owner(*this, param); }

  // The state of all parameters, in the order of parameters(), as copies on the CPU; nothing on
  // other ranks than `root`. What it returns fits load_state() of a plain Optim. Collective.
  std::vector<ParameterState> consolidated_state(int root = 0) const {
    std::vector<std::vector<std::string>> names;
    for (std::size_t group = 0; group < this->group_count(); ++group) {
      names.resize(names.size() + this->parameters(group).size(), this->state_names(group));
    }
    return partition_->gather(*this, names, root);
  }
  // Takes this rank's part of a whole state, of this many ranks or another number of them. Every
  // rank must be given all of it; not collective. InvalidArgument when it does not fit.
  void load_consolidated_state(const std::vector<ParameterState>& states) {
    const std::vector<Tensor> params = this->parameters();
    check(states.size() == params.size(), "[load_consolidated_state] ", states.size(),
          " parameters given, ", params.size(), " wanted");
    for (std::size_t i = 0, group = 0, end = this->parameters(0).size(); i < params.size(); ++i) {
      while (i == end) end += this->parameters(++group).size();
      ParameterState entry = states[i];
      if (entry.state.empty()) {  // zeros are what a first step begins with
        for (const std::string& name : this->state_names(group)) {
          entry.state.push_back({name, Tensor::zeros(params[i].shape(), params[i].options())});
        }
      }
      this->load_state(params[i], entry.step_count, entry.state);
    }
  }

 protected:
  bool updates(const Tensor& param) const override {
    return owner(param) == partition_->group()->rank();
  }
  void step_all(double grad_scale) override {
    partition_->agree(*this);
    try {
      Optim::step_all(grad_scale);
    } catch (const std::exception& error) {
      partition_->abandon(error);
      throw;
    }
    partition_->exchange();
  }

 private:
  std::unique_ptr<parallel::ZeroPartition> partition_;
};

}  // namespace cohort
