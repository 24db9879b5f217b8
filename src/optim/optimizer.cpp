#include "cohort/optim/optimizer.h"

#include <algorithm>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"

namespace cohort::optim {
namespace {

// Elements from the start of `a` to the start of `b` when b lies behind a in one storage, with
// nothing between them but what alignment may leave; -1 otherwise.
std::int64_t distance_behind(const Tensor& a, const Tensor& b) {
  if (&a.storage() != &b.storage() || a.dtype() != b.dtype()) return -1;
  const std::int64_t distance = b.storage_offset() - a.storage_offset();
  const std::int64_t gap = distance - a.numel();
  const auto item = static_cast<std::int64_t>(item_size(a.dtype()));
  return gap >= 0 && gap * item < static_cast<std::int64_t>(kMemoryAlignment) ? distance : -1;
}

bool lies_at(const Tensor& a, const Tensor& b, std::int64_t distance) {
  return &a.storage() == &b.storage() && a.dtype() == b.dtype() &&
         b.storage_offset() - a.storage_offset() == distance;
}

// The memory from the first element of `first` to the last of `last`, as one row.
Tensor joined(const Tensor& first, const Tensor& last) {
  if (first.is_same(last)) return first;
  const std::int64_t length = last.storage_offset() + last.numel() - first.storage_offset();
  return first.as_strided({length}, {1}, first.storage_offset());
}

void check_parameter(const Tensor& param, std::size_t index) {
  check(param.defined(), "[optim] parameter ", index, " is undefined");
  check<DTypeError>(is_floating(param.dtype()), "[optim] parameter ", index, " of shape ",
                    param.shape(), " is ", param.dtype(), "; only floating ones can be trained");
  check(param.is_leaf(), "[optim] parameter ", index, " of shape ", param.shape(),
        " is the result of an operation; give the leaf it was made from");
  check(param.is_contiguous(), "[optim] parameter ", index, " of shape ", param.shape(),
        " is not contiguous");
}

// FSDP makes parameters rows, and whole again, while an optimizer may hold them.
void check_state(const Tensor& param, const std::vector<Tensor>& state, std::size_t group,
                 std::size_t index) {
  for (const Tensor& tensor : state) {
    check<ShapeError>(tensor.shape() == param.shape(), "[step] the state of parameter ", index,
                      " of group ", group, " has shape ", tensor.shape(), ", the parameter ",
                      param.shape(),
                      ": it was sharded, or restored, after this optimizer's first step; make the "
                      "optimizer after FSDP");
  }
}

// The gradient as one piece of memory.
Tensor fitting_gradient(const Tensor& param, std::size_t group, std::size_t index) {
  const Tensor& grad = param.grad();
  check<ShapeError>(grad.shape() == param.shape(), "[step] gradient of shape ", grad.shape(),
                    " for parameter ", index, " of group ", group, ", of shape ", param.shape());
  // Kernels read narrower gradients as the values they are.
  const bool readable =
      grad.dtype() == param.dtype() ||
      (is_floating(grad.dtype()) && item_size(grad.dtype()) < item_size(param.dtype()));
  check<DTypeError>(readable && grad.device() == param.device(), "[step] gradient of ",
                    grad.dtype(), " on ", grad.device(), " for parameter ", index, " of group ",
                    group, ", of ", param.dtype(), " on ", param.device());
  return grad.is_contiguous() ? grad : grad.contiguous();
}

}  // namespace

void Optimizer::add_group(const std::vector<Tensor>& params) {
  check(!params.empty(), "[optim] the parameter group is empty");
  std::vector<Slot> slots;
  slots.reserve(params.size());
  auto places = places_;
  for (const Tensor& param : params) {
    check_parameter(param, slots.size());
    const bool fresh = places.emplace(param.impl(), Place{groups_.size(), slots.size()}).second;
    check(fresh, "[optim] parameter ", slots.size(), " of shape ", param.shape(),
          " occurs twice; each may be in one group only");
    slots.push_back({param, {}, 0});
  }
  groups_.push_back(std::move(slots));
  places_ = std::move(places);
}

void Optimizer::step(double grad_scale) {
  const NoGrad no_grad;
  fused_ranges_ = 0;
  step_all(grad_scale);
}

void Optimizer::step_all(double grad_scale) {
  for (std::size_t group = 0; group < groups_.size(); ++group) step_group(group, grad_scale);
}

std::vector<Optimizer::Active> Optimizer::active_slots(std::size_t group) {
  const bool needs_whole = !element_wise();
  std::vector<Active> active;
  active.reserve(groups_[group].size());
  for (std::size_t i = 0; i < groups_[group].size(); ++i) {
    Slot& slot = groups_[group][i];
    check_state(slot.param, slot.state, group, i);
    check(!needs_whole || grad_manager(slot.param) != "FSDP", "[step] parameter ", i, " of group ",
          group,
          " is sharded by FSDP, but this optimizer's update of an element depends on others; use "
          "one that is element-wise");
    if (!slot.param.grad().defined() || slot.param.numel() == 0) continue;
    if (!updates(slot.param)) continue;
    active.push_back({&slot, fitting_gradient(slot.param, group, i)});
  }
  return active;
}

void Optimizer::step_group(std::size_t group, double grad_scale) {
  const std::vector<Active> active = active_slots(group);
  const std::size_t states = state_names(group).size();
  std::vector<Slot*> without_state;
  for (const Active& entry : active) {
    if (entry.slot->state.size() != states) without_state.push_back(entry.slot);
  }
  create_state(without_state, states);

  const bool spans_padding = keeps_zeros(group);
  const auto follows = [&](const Active& a, const Active& b) {
    const std::int64_t distance = distance_behind(a.slot->param, b.slot->param);
    if (distance < 0 || !lies_at(a.grad, b.grad, distance)) return false;
    if (a.slot->steps != b.slot->steps) return false;
    for (std::size_t i = 0; i < states; ++i) {
      if (!lies_at(a.slot->state[i], b.slot->state[i], distance)) return false;
    }
    const bool padded = a.slot->param.storage().padded_slots() && a.grad.storage().padded_slots();
    return distance == a.slot->param.numel() || (padded && spans_padding);
  };

  for (std::size_t first = 0, next = 0; first < active.size(); first = next) {
    for (next = first + 1; next < active.size() && follows(active[next - 1], active[next]);) ++next;
    const Active& last = active[next - 1];
    Range range;
    range.param = joined(active[first].slot->param, last.slot->param);
    range.grad = joined(active[first].grad, last.grad);
    for (std::size_t i = 0; i < states; ++i) {
      range.state.push_back(joined(active[first].slot->state[i], last.slot->state[i]));
    }
    range.step_count = last.slot->steps + 1;
    update(group, range, grad_scale);
    range.param.storage().bump_version();
    for (std::size_t i = first; i < next; ++i) ++active[i].slot->steps;
    ++fused_ranges_;
  }
}

// Gives each slot its state, zero; those of neighbouring parameters are neighbours at the same
// distances, whatever lies in the gaps.
void Optimizer::create_state(const std::vector<Slot*>& slots, std::size_t count) const {
  if (count == 0) return;
  const MemoryCategoryScope scope(MemoryCategory::optimizer);
  for (std::size_t first = 0, next = 0; first < slots.size(); first = next) {
    for (next = first + 1; next < slots.size(); ++next) {
      if (distance_behind(slots[next - 1]->param, slots[next]->param) < 0) break;
    }
    const Tensor extent = joined(slots[first]->param, slots[next - 1]->param);
    const std::int64_t origin = extent.storage_offset();
    for (std::size_t i = first; i < next; ++i) slots[i]->state.clear();
    for (std::size_t k = 0; k < count; ++k) {
      const Tensor flat = Tensor::zeros(extent.shape(), extent.options());
      for (std::size_t i = first; i < next; ++i) {
        const Tensor& param = slots[i]->param;
        slots[i]->state.push_back(
            flat.as_strided(param.shape(), param.strides(), param.storage_offset() - origin));
      }
    }
  }
}

void Optimizer::zero_grad(bool set_to_none) {
  const NoGrad no_grad;
  for (auto& slots : groups_) {
    for (Slot& slot : slots) {
      if (!slot.param.grad().defined()) continue;
      if (set_to_none) {
        slot.param.set_grad({});
      } else {
        Tensor(slot.param.grad()).zero_();
      }
    }
  }
}

std::vector<Tensor> Optimizer::parameters(std::size_t group) const {
  check(group < groups_.size(), "[optim] there is no parameter group ", group, " among ",
        groups_.size());
  std::vector<Tensor> result;
  for (const Slot& slot : groups_[group]) result.push_back(slot.param);
  return result;
}

std::vector<Tensor> Optimizer::parameters() const {
  std::vector<Tensor> result;
  for (const auto& slots : groups_) {
    for (const Slot& slot : slots) result.push_back(slot.param);
  }
  return result;
}

const Optimizer::Slot& Optimizer::slot_of(const Tensor& param) const {
  const auto found = places_.find(param.impl());
  check(found != places_.end(), "[optim] the tensor is not a parameter of this optimizer");
  return groups_[found->second.group][found->second.index];
}

std::int64_t Optimizer::planned_state_bytes() const {
  std::int64_t bytes = 0;
  for (std::size_t group = 0; group < groups_.size(); ++group) {
    const auto tensors = static_cast<std::int64_t>(state_names(group).size());
    for (const Slot& slot : groups_[group]) {
      if (updates(slot.param)) bytes += tensors * static_cast<std::int64_t>(slot.param.bytes());
    }
  }
  return bytes;
}

std::int64_t Optimizer::step_count(const Tensor& param) const {
  return slot_of(param).steps;
}

std::vector<NamedState> Optimizer::state(const Tensor& param) const {
  const Slot& slot = slot_of(param);
  std::vector<NamedState> result;
  if (slot.state.empty()) return result;
  std::vector<std::string> names = state_names(places_.at(param.impl()).group);
  for (std::size_t i = 0; i < names.size(); ++i) {
    result.push_back({std::move(names[i]), slot.state[i]});
  }
  return result;
}

std::vector<std::string> Optimizer::state_names_of(const Tensor& param) const {
  slot_of(param);
  return state_names(places_.at(param.impl()).group);
}

void Optimizer::load_state(const Tensor& param, std::int64_t step_count,
                           const std::vector<NamedState>& state) {
  const std::vector<std::string> names = state_names_of(param);
  check(step_count >= 0, "[load_state] the step count is ", step_count);
  const Place place = places_.at(param.impl());
  check(state.size() == names.size(), "[load_state] ", state.size(), " tensors given, ",
        names.size(), " wanted");
  std::vector<Tensor> ordered;
  for (const std::string& name : names) {
    const auto given = std::find_if(state.begin(), state.end(),
                                    [&](const NamedState& entry) { return entry.name == name; });
    check(given != state.end(), "[load_state] '", name, "' is missing");
    check<ShapeError>(given->tensor.shape() == param.shape(), "[load_state] '", name,
                      "' has shape ", given->tensor.shape(), ", the parameter ", param.shape());
    ordered.push_back(given->tensor);
  }
  if (!updates(param)) return;
  // The whole group gets its state at once, so that neighbours' states are neighbours.
  std::vector<Slot*> without_state;
  for (Slot& slot : groups_[place.group]) {
    if (slot.state.size() != names.size() && updates(slot.param)) without_state.push_back(&slot);
  }
  create_state(without_state, names.size());
  const NoGrad no_grad;
  Slot& slot = groups_[place.group][place.index];
  slot.steps = step_count;
  for (std::size_t i = 0; i < ordered.size(); ++i) slot.state[i].copy_(ordered[i]);
}

}  // namespace cohort::optim
