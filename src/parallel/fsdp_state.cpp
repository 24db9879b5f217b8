// States of models: whole, and each rank's part.

#include <exception>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/agreement.h"
#include "parallel/fsdp_runtime.h"
#include "parallel/fsdp_together.h"
#include "parallel/state_pieces.h"
#include "parallel/state_places.h"

namespace cohort::parallel {
namespace {

// Brings the pieces into the targets, from rank 0 alone where no other rank has any.
void load(FSDPRuntime& runtime, const std::string& what, const StatePieces& pieces,
          bool from_rank0) {
  comm::ProcessGroup& group = *runtime.group();
  const std::vector<StateTarget> targets = state_targets(runtime.module(), StatePlaces(runtime));
  std::vector<StateTarget> wanted = targets;
  if (from_rank0) {
    for (StateTarget& target : wanted) target.part = {0, target.shape.product()};
  }
  const bool reads = !from_rank0 || group.rank() == 0;
  require_all_ready(group, "[" + what + "] the state does not fit",
                    reads ? pieces.problems(wanted) : std::string());
  runtime.reshard_all();
  run_together(runtime, what, [&] {
    if (from_rank0) {
      fill_from_rank0(group, pieces, targets);
    } else {
      for (const StateTarget& target : targets) pieces.fill(target);
    }
  });
  for (FSDPUnit& unit : runtime.units()) {
    for (FSDPUnit::Flat& flat : unit.flats) flat.parameter->written();
  }
}

// Gives `fn` the tensors of the state, whole, one after the other.
void stream_full(FSDPRuntime& runtime, const std::string& what,
                 const std::function<void(const std::string&, const Tensor&)>& fn,
                 bool rank0_only) {
  runtime.require_rest(what);
  comm::ProcessGroup& group = *runtime.group();
  require_agreement(group, "[" + what + "] calls", {call_text(what, rank0_only)});
  const NoGrad no_grad;
  const MemoryCategoryScope category(MemoryCategory::other);
  const bool wanted = !rank0_only || group.rank() == 0;
  const StatePlaces places(runtime);
  std::exception_ptr thrown;
  const auto give = [&](const std::string& name, const Tensor& whole) {
    try {
      if (!thrown) fn(name, whole);
    } catch (...) {
      thrown = std::current_exception();  // the others still need this rank's part
    }
  };
  run_together(runtime, what, [&] {
    runtime.fence();
    for (const auto& [name, tensor] : runtime.module().named_state()) {
      const StatePlace place = places.of(tensor);
      const Tensor shared = place.flat ? place.flat->shared_whole(place.index) : tensor.detach();
      if (shared.defined()) {
        if (wanted) give(name, shared.clone().to(Device::cpu()));
      } else if (gathers(place, rank0_only)) {
        const Tensor whole =
            gather_whole(*place.flat, place.index, place.flat->row_view(place.index), !rank0_only);
        if (wanted) give(name, whole);
      }
    }
    runtime.fence();
  });
  const auto failure = first_failure(group, thrown ? what_of(thrown) : std::string());
  if (thrown) std::rethrow_exception(thrown);
  if (!failure) return;
  throw RemoteError(str("[", what, "] rank ", failure->first, " failed: ", failure->second,
                        " (seen on rank ", group.rank(), ", group ", group.name(), ")"),
                    failure->first);
}

}  // namespace

void FSDPEngine::for_each_full_tensor(
    const std::function<void(const std::string&, const Tensor&)>& fn, bool rank0_only) {
  stream_full(*runtime_, "for_each_full_tensor", fn, rank0_only);
}

std::vector<nn::NamedTensor> FSDPEngine::full_state(bool rank0_only) {
  std::vector<nn::NamedTensor> state;
  const auto keep = [&](const std::string& name, const Tensor& tensor) {
    state.push_back({name, tensor});
  };
  stream_full(*runtime_, "full_state", keep, rank0_only);
  return state;
}

ShardedState FSDPEngine::sharded_state() const {
  const NoGrad no_grad;
  const StatePlaces places(*runtime_);
  ShardedState state;
  check(!runtime_->summoned(), "[sharded_state] must not be called inside summon_full_params");
  for (const auto& [name, tensor] : runtime_->module().named_state()) {
    const StatePlace place = places.of(tensor);
    state.push_back({name, place.shape, place.part.begin, place.part.end, place.replica,
                     place.flat ? place.flat->row_view(place.index) : tensor.detach()});
  }
  return state;
}

void FSDPEngine::load_full_state(const std::vector<nn::NamedTensor>& state) {
  const std::string what = "load_full_state";
  runtime_->require_rest(what);
  const NoGrad no_grad;
  const StatePieces pieces(state);
  load(*runtime_, what, pieces, rank0_alone_brings(*runtime_->group(), !state.empty(), what));
}

void FSDPEngine::load_sharded_state(std::span<const ShardedState> states) {
  const std::string what = "load_sharded_state";
  runtime_->require_rest(what);
  const NoGrad no_grad;
  load(*runtime_, what, StatePieces(states), false);
}

}  // namespace cohort::parallel
