#include "parallel/state_places.h"

#include <cstdint>
#include <vector>

namespace cohort::parallel {

StatePlaces::StatePlaces(FSDPRuntime& runtime) : rank_(runtime.group()->rank()) {
  for (FSDPUnit& unit : runtime.units()) {
    const int replica = unit.groups->replicate ? unit.groups->replicate->rank() : 0;
    for (FSDPUnit::Flat& flat : unit.flats) {
      FlatParameter& parameter = *flat.parameter;
      for (std::size_t i = 0; i < parameter.size(); ++i) {
        sharded_[parameter.parameters()[i].tensor.impl()] = {&parameter, i, parameter.shape(i),
                                                             parameter.local(i), replica};
      }
    }
  }
}

StatePlace StatePlaces::of(const Tensor& tensor) const {
  const auto found = sharded_.find(tensor.impl());
  if (found != sharded_.end()) return found->second;
  return {nullptr, 0, tensor.shape(), {0, tensor.numel()}, rank_};
}

std::vector<StateTarget> state_targets(const nn::Module& module, const StatePlaces& places) {
  std::vector<StateTarget> targets;
  for (const auto& [name, tensor] : module.named_state()) {
    const StatePlace place = places.of(tensor);
    targets.push_back({name, place.shape, place.part,
                       place.flat ? place.flat->row_view(place.index) : tensor.detach()});
  }
  return targets;
}

Tensor gather_whole(const FlatParameter& flat, std::size_t index, const Tensor& row,
                    bool everywhere) {
  comm::ProcessGroup& group = flat.group();
  const FlatLayout& layout = flat.layout();
  const comm::CollectiveOptions options{.owner = flat.parameters()[index].name};
  const auto ranks = group.size();
  const FlatLayout::Range own = layout.local(index, group.rank());
  if (!everywhere && group.rank() != 0) {
    if (own.size() > 0) group.send(row, 0, options).synchronize();
    return {};
  }
  const Tensor whole = Tensor::empty(flat.shape(index), row.options());
  if (whole.numel() == 0) return whole;
  const auto part_of = [&](const FlatLayout::Range& part) {
    return whole.as_strided({part.size()}, {1}, part.begin);
  };
  if (ranks == 1) {
    part_of(own).copy_(row);
  } else if (everywhere) {
    std::vector<std::int64_t> counts;
    for (int rank = 0; rank < ranks; ++rank) counts.push_back(layout.local(index, rank).size());
    group.all_gather(part_of({0, whole.numel()}), row, counts, options).synchronize();
  } else {
    if (own.size() > 0) part_of(own).copy_(row);
    for (int rank = 1; rank < ranks; ++rank) {
      const FlatLayout::Range part = layout.local(index, rank);
      if (part.size() > 0) group.recv(part_of(part), rank, options).synchronize();
    }
  }
  return whole.to(Device::cpu());
}

}  // namespace cohort::parallel
