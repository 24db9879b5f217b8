#include "cohort/data/sampler.h"

#include <numeric>

#include "cohort/core/error.h"
#include "cohort/core/random.h"
#include "cohort/ops/random.h"

namespace cohort::data {
namespace {

std::vector<std::int64_t> in_order(std::int64_t size) {
  std::vector<std::int64_t> order(static_cast<std::size_t>(size));
  std::iota(order.begin(), order.end(), 0);
  return order;
}

// Epochs are subsequences of the seed's stream, so that (seed, epoch) and (seed + 1, epoch - 1)
// have nothing in common.
std::vector<std::int64_t> shuffled(std::int64_t size, std::uint64_t seed, std::int64_t epoch) {
  Generator generator(seed, static_cast<std::uint64_t>(epoch));
  return random_permutation(size, generator);
}

}  // namespace

SequentialSampler::SequentialSampler(std::int64_t size) : size_(size) {
  check(size >= 0, "[SequentialSampler] size is ", size);
}

std::vector<std::int64_t> SequentialSampler::indices() const {
  return in_order(size_);
}

RandomSampler::RandomSampler(std::int64_t size, std::uint64_t seed) : size_(size), seed_(seed) {
  check(size >= 0, "[RandomSampler] size is ", size);
}

std::vector<std::int64_t> RandomSampler::indices() const {
  return shuffled(size_, seed_, epoch());
}

DistributedSampler::DistributedSampler(std::int64_t dataset_size,
                                       const DistributedSamplerOptions& options)
    : dataset_size_(dataset_size), options_(options) {
  const std::int64_t replicas = options.num_replicas;
  check(dataset_size >= 0, "[DistributedSampler] the dataset's size is ", dataset_size);
  check(replicas > 0, "[DistributedSampler] num_replicas is ", replicas, "; it must be positive");
  check(options.rank >= 0 && options.rank < replicas, "[DistributedSampler] rank ", options.rank,
        " is outside [0, ", replicas, ")");
  size_ = dataset_size / replicas;
  if (!options.drop_last && dataset_size % replicas != 0) ++size_;
}

std::vector<std::int64_t> DistributedSampler::indices() const {
  const std::vector<std::int64_t> order =
      options_.shuffle ? shuffled(dataset_size_, options_.seed, epoch()) : in_order(dataset_size_);
  std::vector<std::int64_t> share;
  share.reserve(static_cast<std::size_t>(size_));
  for (std::int64_t i = 0; i < size_; ++i) {
    // Past the end the order begins again, as often as a dataset smaller than the world needs.
    const std::int64_t place = options_.rank + i * options_.num_replicas;
    share.push_back(order[static_cast<std::size_t>(place % dataset_size_)]);
  }
  return share;
}

}  // namespace cohort::data
