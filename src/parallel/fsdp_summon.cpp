// Whole parameters outside a step.

#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "cohort/core/memory.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/agreement.h"
#include "parallel/fsdp_together.h"
#include "parallel/state_places.h"

namespace cohort::parallel {
namespace {

// A whole copy of this rank's own, so that what the body writes is nobody else's.
struct Summoned {
  FlatParameter* flat;
  std::size_t index;
  Tensor whole;  // holds the parameter's row while that is whole
};

std::vector<Summoned> gather_copies(FSDPRuntime& runtime, bool rank0_only) {
  const MemoryCategoryScope category(MemoryCategory::parameters);
  const bool wanted = !rank0_only || runtime.group()->rank() == 0;
  const StatePlaces places(runtime);
  std::vector<Summoned> copies;
  run_together(runtime, "summon_full_params", [&] {
    runtime.fence();
    for (FSDPUnit& unit : runtime.units()) {
      for (FSDPUnit::Flat& flat : unit.flats) {
        FlatParameter& parameter = *flat.parameter;
        for (std::size_t i = 0; i < parameter.size(); ++i) {
          Tensor whole = parameter.shared_whole(i);
          if (whole.defined()) {
            if (wanted) whole = whole.clone();
          } else if (gathers(places.of(parameter.parameters()[i].tensor), rank0_only)) {
            whole = gather_whole(parameter, i, parameter.row_view(i), !rank0_only);
          }
          if (wanted) copies.push_back({&parameter, i, whole});
        }
      }
    }
    runtime.fence();
  });
  return copies;
}

void exchange(const std::vector<Summoned>& copies) {
  for (const Summoned& copy : copies) {
    copy.flat->parameters()[copy.index].tensor.impl()->swap_view(*copy.whole.impl());
  }
}

// Takes over what the body wrote to this rank's own elements.
void write_back(FSDPRuntime& runtime, const std::vector<Summoned>& copies) {
  for (const Summoned& copy : copies) {
    const FlatLayout::Range part = copy.flat->local(copy.index);
    if (part.size() == 0) continue;
    const Tensor whole = copy.whole.contiguous();
    copy.flat->row_view(copy.index)
        .copy_(whole.as_strided({part.size()}, {1}, whole.storage_offset() + part.begin));
  }
  // Ranks that have the same part have to have the same values.
  for (FSDPUnit& unit : runtime.units()) {
    const auto& replicas = unit.groups->replicate;
    for (FSDPUnit::Flat& flat : unit.flats) {
      const Tensor& shard = flat.parameter->shard();
      if (replicas && replicas->size() > 1 && shard.numel() > 0) {
        replicas->broadcast(shard, 0, {.owner = "summoned"}).synchronize();
      }
      flat.parameter->written();
    }
  }
}

}  // namespace

void FSDPEngine::summon(const std::function<void()>& body, const SummonOptions& options) {
  const std::string what = "summon_full_params";
  runtime_->require_rest(what);
  check(!options.rank0_only || !options.writeback, "[", what,
        "] rank0_only and writeback exclude each other: the other ranks have nothing to write "
        "back; set writeback = false");
  comm::ProcessGroup& group = *runtime_->group();
  require_agreement(group, "[" + what + "] calls",
                    {str(call_text(what, options.rank0_only), ", writeback ", options.writeback)});
  const NoGrad no_grad;
  runtime_->reshard_all();
  const std::vector<Summoned> copies = gather_copies(*runtime_, options.rank0_only);
  std::exception_ptr thrown;
  exchange(copies);
  runtime_->set_summoned(true);
  try {
    body();
  } catch (...) {
    thrown = std::current_exception();
  }
  runtime_->set_summoned(false);
  exchange(copies);
  const auto failure = first_failure(group, thrown ? what_of(thrown) : std::string());
  if (thrown) std::rethrow_exception(thrown);
  if (failure) {
    throw RemoteError(
        str("[", what, "] the body failed on rank ", failure->first, ": ", failure->second,
            " (seen on rank ", group.rank(), ", group ", group.name(), "); nothing was written"),
        failure->first);
  }
  if (!options.writeback) return;
  run_together(*runtime_, what, [&] { write_back(*runtime_, copies); });
}

}  // namespace cohort::parallel
