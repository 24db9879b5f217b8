#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/core/tensor.h"

namespace cohort::optim {

// A tensor of an optimizer's state and its name ("exp_avg"), which is PyTorch's.
struct NamedState {
  std::string name;
  Tensor tensor;
};

// Parameters that are updated with the same options; without any, with the optimizer's.
template <typename Options>
struct ParamGroup {
  std::vector<Tensor> params;
  std::optional<Options> options = std::nullopt;
};

// Updates parameters by their gradients.
//
// A step is fused over contiguous memory: parameters of a group that lie one behind the other in
// one storage, with gradients and state that do too at the same distances, are updated by one
// kernel over the joint range. State is allocated so that this holds whenever the parameters are
// neighbours. A gap between two parameters is part of the range only inside flat buffers that
// promise that gaps are padding (Storage::set_padded_slots), for parameters and gradients both.
//
// State is created at a parameter's first step, under MemoryCategory::optimizer. Parameters without
// a gradient are skipped. Belongs to one host thread; a failed step leaves parameters updated that
// came before the failure.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  // One update. Gradients are read as grad_scale * gradient (1 / loss scale, or a clipping factor);
  // those of lower precision than their parameter are not converted before.
  // ShapeError or DTypeError when a gradient does not fit its parameter.
  void step(double grad_scale = 1);
  // Clears the gradients, or fills them with zeros.
  void zero_grad(bool set_to_none = true);

  // Whether each element's update depends on that element alone, so that shards of parameters may
  // be updated on their own. FSDP refuses optimizers that say no.
  virtual bool element_wise() const { return false; }

  // Whether this rank has the state of all its parameters, not of a part that it shares with
  // others.
  virtual bool has_all_state() const { return true; }

  std::size_t group_count() const { return groups_.size(); }
  // Parameters of one group, or of all, in order.
  std::vector<Tensor> parameters(std::size_t group) const;
  std::vector<Tensor> parameters() const;
  virtual double lr(std::size_t group = 0) const = 0;
  virtual void set_lr(double lr, std::size_t group = 0) = 0;

  // Bytes of state once every parameter has been stepped, of those that this optimizer updates().
  std::int64_t planned_state_bytes() const;

  // Steps that `param` has taken, and its state, shared with the optimizer: empty before its first
  // step. InvalidArgument for a tensor that is not a parameter of this optimizer.
  std::int64_t step_count(const Tensor& param) const;
  std::vector<NamedState> state(const Tensor& param) const;
  // Names of the state that `param` has, or will have from its first step on. InvalidArgument as
  // above.
  std::vector<std::string> state_names_of(const Tensor& param) const;
  // Sets both, copying the tensors. InvalidArgument when names are missing or unknown.
  void load_state(const Tensor& param, std::int64_t step_count,
                  const std::vector<NamedState>& state);

  // Kernel calls of the last step: its number of fused ranges.
  std::int64_t fused_ranges() const { return fused_ranges_; }

 protected:
  Optimizer() = default;

  // Neighbouring parameters as one contiguous tensor [n] (a lone one in its own shape), likewise
  // their gradients and states.
  struct Range {
    Tensor param;
    Tensor grad;
    std::vector<Tensor> state;    // in the order of state_names()
    std::int64_t step_count = 0;  // 1 in the first step
  };

  // Names of the state tensors that each parameter of a group has, each of the parameter's shape
  // and dtype.
  virtual std::vector<std::string> state_names(std::size_t group) const = 0;
  virtual void update(std::size_t group, const Range& range, double grad_scale) = 0;
  // For optimizers that share their parameters out (parallel/zero_redundancy_optimizer.h). Whether
  // this one updates `param`: others are skipped like those without a gradient, and have no state
  // here. load_state() of such a one checks its arguments and keeps nothing.
  virtual bool updates(const Tensor& /*param*/) const { return true; }
  // All of a step.
  virtual void step_all(double grad_scale);
  // Whether zero parameters with zero gradients and state stay zero, as padding must.
  virtual bool keeps_zeros(std::size_t /*group*/) const { return true; }

  // Adds a group. InvalidArgument when it is empty or a parameter occurs twice, is not a leaf or
  // not contiguous; DTypeError when one is not floating.
  void add_group(const std::vector<Tensor>& params);

 private:
  struct Slot {
    Tensor param;
    std::vector<Tensor> state;
    std::int64_t steps = 0;
  };
  struct Place {
    std::size_t group;
    std::size_t index;
  };
  // A parameter that takes part in this step.
  struct Active {
    Slot* slot;
    Tensor grad;
  };

  void step_group(std::size_t group, double grad_scale);
  std::vector<Active> active_slots(std::size_t group);
  void create_state(const std::vector<Slot*>& slots, std::size_t count) const;
  const Slot& slot_of(const Tensor& param) const;

  std::vector<std::vector<Slot>> groups_;
  std::unordered_map<const TensorImpl*, Place> places_;
  std::int64_t fused_ranges_ = 0;
};

// An optimizer whose groups have `Options`, which hold the learning rate as `lr`.
template <typename Options>
class OptimizerOf : public Optimizer {
 public:
  double lr(std::size_t group = 0) const override { return options(group).lr; }
  void set_lr(double lr, std::size_t group = 0) override {
    Options changed = options(group);
    changed.lr = lr;
    validate(changed);
    options_[group] = changed;
  }
  // InvalidArgument when there is no such group.
  const Options& options(std::size_t group = 0) const {
    check(group < options_.size(), "[optim] there is no parameter group ", group, " among ",
          options_.size());
    return options_[group];
  }
  void add_param_group(const ParamGroup<Options>& group) {
    const Options options = group.options.value_or(defaults_);
    validate(options);
    add_group(group.params);
    options_.push_back(options);
  }

 protected:
  explicit OptimizerOf(const Options& defaults) : defaults_(defaults) {}
  // Throws InvalidArgument for options that cannot be right.
  virtual void validate(const Options& options) const = 0;

 private:
  Options defaults_;
  std::vector<Options> options_;
};

}  // namespace cohort::optim
