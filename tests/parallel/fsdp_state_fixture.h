#pragma once

// What the tests of FSDP's states share: layouts to save in and load into, and states as plain
// values, which threads that are ranks can hand to each other.

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/parallel/fsdp.h"
#include "parallel/fsdp_fixture.h"

namespace cohort {

struct StateLayout {
  int world;
  ShardingStrategy strategy = ShardingStrategy::full_shard;
  int shard_size = 0;
  bool wrapped = true;
  bool zero_copy = true;

  bool operator==(const StateLayout&) const = default;
  FSDPOptions options() const {
    FSDPOptions options{.sharding_strategy = strategy, .zero_copy = zero_copy};
    options.shard_size = shard_size;
    if (wrapped) options.auto_wrap_policy = linears();
    return options;
  }
};

inline std::ostream& operator<<(std::ostream& out, const StateLayout& layout) {
  return out << layout.strategy << " over " << layout.world << ", shard size " << layout.shard_size
             << ", wrapped " << layout.wrapped << ", zero copy " << layout.zero_copy;
}

inline std::vector<StateLayout> state_layouts() {
  return {{.world = 1},
          {.world = 2},
          {.world = 2, .wrapped = false, .zero_copy = false},
          {.world = 3, .zero_copy = false},
          {.world = 4},
          {.world = 2, .strategy = ShardingStrategy::no_shard},
          {.world = 4, .strategy = ShardingStrategy::hybrid_shard, .shard_size = 2},
          {.world = 4,
           .strategy = ShardingStrategy::hybrid_shard,
           .shard_size = 2,
           .wrapped = false,
           .zero_copy = false}};
}

// Calls fn(group, layout) on every rank of each layout, with one world for those of a size.
inline void run_in_layouts(const std::function<void(const Group&, const StateLayout&)>& fn) {
  for (const int world : {1, 2, 3, 4}) {
    comm::LocalWorld(world).run([&](const Group& group) {
      for (const StateLayout& layout : state_layouts()) {
        if (layout.world == world) fn(group, layout);
      }
    });
  }
}

// Trained, frozen and never used parameters of widths that ranks share out unevenly, and a buffer.
struct StateNet : nn::ModuleOf<StateNet> {
  explicit StateNet(std::int64_t width)
      : first(make_module<nn::Linear>("first", 12, width)),
        frozen(make_module<nn::Linear>("frozen", width, width)),
        last(make_module<nn::Linear>("last", width, 5)),
        spare(register_parameter("spare", Tensor::ones({3}))),
        seen(register_buffer("seen", Tensor::full({2}, 7))) {
    frozen->requires_grad_(false);
  }
  nn::Child<nn::Linear> first;
  nn::Child<nn::Linear> frozen;
  nn::Child<nn::Linear> last;
  Tensor spare;
  Tensor seen;
  Tensor forward(const Tensor& x) { return last(tanh(frozen(tanh(first(x))))); }
};

inline std::shared_ptr<StateNet> state_net(std::uint64_t seed, std::int64_t width = 5) {
  manual_seed(seed);
  return std::make_shared<StateNet>(width);
}

struct PlainTensor {
  std::string name;
  Shape shape;
  std::int64_t begin = 0;
  std::int64_t end = 0;
  int replica = 0;
  std::vector<float> values;
};

inline std::vector<PlainTensor> plain(const ShardedState& state) {
  std::vector<PlainTensor> result;
  for (const auto& [name, shape, begin, end, replica, tensor] : state) {
    result.push_back({name, shape, begin, end, replica, tensor.to_vector<float>()});
  }
  return result;
}

inline ShardedState sharded(const std::vector<PlainTensor>& state) {
  ShardedState result;
  for (const auto& [name, shape, begin, end, replica, values] : state) {
    result.push_back({name, shape, begin, end, replica, Tensor::from(values, {end - begin})});
  }
  return result;
}

inline std::vector<PlainTensor> plain(const std::vector<nn::NamedTensor>& state) {
  std::vector<PlainTensor> result;
  for (const auto& [name, tensor] : state) {
    result.push_back({name, tensor.shape(), 0, tensor.numel(), 0, tensor.to_vector<float>()});
  }
  return result;
}

inline std::vector<nn::NamedTensor> named(const std::vector<PlainTensor>& state) {
  std::vector<nn::NamedTensor> result;
  for (const auto& entry : state) {
    result.push_back({entry.name, Tensor::from(entry.values, entry.shape)});
  }
  return result;
}

// Results of ranks, by rank.
template <typename T>
class OfRanks {
 public:
  explicit OfRanks(int size) : values_(static_cast<std::size_t>(size)) {}
  void put(int rank, T value) {
    const std::lock_guard lock(*mutex_);
    values_[static_cast<std::size_t>(rank)] = std::move(value);
  }
  const std::vector<T>& get() const { return values_; }

 private:
  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::vector<T> values_;
};

inline std::vector<ShardedState> sharded(const std::vector<std::vector<PlainTensor>>& states) {
  std::vector<ShardedState> result;
  for (const auto& state : states) result.push_back(sharded(state));
  return result;
}

}  // namespace cohort
