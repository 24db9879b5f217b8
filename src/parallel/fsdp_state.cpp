// Whole parameters outside a step, and states to save and load.

#include <algorithm>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/fsdp_runtime.h"

namespace cohort::parallel {

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

}  // namespace cohort::parallel
