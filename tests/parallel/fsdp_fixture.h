#pragma once

// What the tests of FSDP share.

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cohort/models/models.h"
#include "cohort/parallel/fsdp.h"
#include "parallel/ddp_fixture.h"

namespace cohort {

using State = std::map<std::string, std::vector<double>>;

inline State values_of(const std::vector<nn::NamedTensor>& list) {
  State state;
  for (const auto& [name, tensor] : list) state[name] = tensor.to_vector<double>();
  return state;
}

inline WrapPolicy linears() {
  return wrap::by_type<nn::Linear>();
}

inline std::shared_ptr<nn::Sequential> small_model() {
  manual_seed(11);
  return models::make_mlp("12-40-24-40-5");
}

inline Tensor inputs_of(int step, int rank, int micro) {
  Generator generator(static_cast<std::uint64_t>((step * 10 + rank) * 10 + micro + 1));
  Tensor x = Tensor::empty({4, 12});
  normal_(x, 0, 1, generator);
  return x;
}

inline Tensor loss_of(const Tensor& logits) {
  return cross_entropy(logits, Tensor::from<std::int64_t>({0, 3, 1, 4}, {4}));
}

// Both ways of sharing, and both of keeping.
inline std::vector<FSDPOptions> kinds(const WrapPolicy& policy) {
  std::vector<FSDPOptions> all;
  for (const auto strategy : {ShardingStrategy::full_shard, ShardingStrategy::shard_grad_op}) {
    for (const bool zero_copy : {true, false}) {
      all.push_back(
          {.sharding_strategy = strategy, .auto_wrap_policy = policy, .zero_copy = zero_copy});
    }
  }
  return all;
}

inline std::int64_t gathers(const comm::ProcessGroup& group) {
  return group.stats().of(comm::Operation::all_gather).count;
}

// Gathers what rank 0 has at the end, after all were found equal.
class Collected {
 public:
  void put(int rank, State state) {
    const std::lock_guard lock(mutex_);
    states_[rank] = std::move(state);
  }
  State get() const {
    for (const auto& [rank, state] : states_) EXPECT_EQ(state, states_.at(0)) << "rank " << rank;
    return states_.at(0);
  }

 private:
  std::mutex mutex_;
  std::map<int, State> states_;
};

}  // namespace cohort
