#pragma once

// One small training, the same wherever its ranks live: what the parity tests compare.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/models/models.h"
#include "cohort/ops/ops.h"
#include "cohort/optim/adam.h"
#include "cohort/optim/sgd.h"
#include "cohort/parallel/ddp.h"

namespace cohort::test {

inline constexpr int kSteps = 20;
inline constexpr std::int64_t kBatch = 12;  // divides by 1, 2, 3 and 4

// A step's whole batch; the same on all ranks.
struct Batch {
  Tensor inputs;
  Tensor targets;
};

inline Batch batch_of(int step) {
  Generator generator(1000 + static_cast<std::uint64_t>(step));
  Tensor inputs = Tensor::empty({kBatch, 20});
  normal_(inputs, 0, 1, generator);
  std::vector<std::int64_t> targets;
  for (std::int64_t i = 0; i < kBatch; ++i) targets.push_back((i * 7 + step) % 5);
  return {inputs, Tensor::from(targets, {kBatch})};
}

using Parameters = std::vector<std::vector<float>>;

// The parameters of this rank after kSteps, each rank having trained on its share of every batch.
inline Parameters train_rank(const std::shared_ptr<comm::ProcessGroup>& group,
                             const DDPOptions& options, bool adam) {
  manual_seed(42);
  DDP ddp(models::make_mlp("20-64-64-5"), group, options);
  std::unique_ptr<optim::Optimizer> optimizer;
  if (adam) {
    optimizer = std::make_unique<optim::AdamW>(ddp.parameters(), optim::AdamWOptions{.lr = 1e-3});
  } else {
    optimizer = std::make_unique<optim::SGD>(ddp.parameters(),
                                             optim::SGDOptions{.lr = 0.05, .momentum = 0.9});
  }
  const std::int64_t share = kBatch / group->size();
  for (int step = 0; step < kSteps; ++step) {
    const Batch batch = batch_of(step);
    const Tensor x = narrow(batch.inputs, 0, group->rank() * share, share);
    const Tensor y = narrow(batch.targets, 0, group->rank() * share, share);
    optimizer->zero_grad();
    cross_entropy(ddp(x), y).backward();
    optimizer->step();
  }
  Parameters values;
  for (const Tensor& tensor : ddp.parameters()) values.push_back(tensor.to_vector<float>());
  return values;
}

// FNV-1a over the bits of all values, in order.
inline std::uint64_t hash_of(const Parameters& parameters) {
  std::uint64_t hash = 14695981039346656037u;
  for (const auto& values : parameters) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(values.data());
    for (std::size_t i = 0; i < values.size() * sizeof(float); ++i) {
      hash = (hash ^ bytes[i]) * 1099511628211u;
    }
  }
  return hash;
}

}  // namespace cohort::test
