#pragma once

#include <cstdint>
#include <vector>

namespace cohort::data {

// An order of samples for each epoch. Equal seeds and epochs give equal orders, on any machine. A
// loader asks for the order when an epoch begins and then moves the sampler on to the next epoch;
// set_epoch() before it (as PyTorch's users do, and after a resume) decides otherwise. Belongs to
// one thread.
class Sampler {
 public:
  virtual ~Sampler() = default;
  // The samples of the current epoch, in order.
  virtual std::vector<std::int64_t> indices() const = 0;
  // Their number: the same in every epoch.
  virtual std::int64_t size() const = 0;

  void set_epoch(std::int64_t epoch) { epoch_ = epoch; }
  std::int64_t epoch() const { return epoch_; }

 private:
  std::int64_t epoch_ = 0;
};

// 0, 1, …, size - 1.
class SequentialSampler : public Sampler {
 public:
  explicit SequentialSampler(std::int64_t size);
  std::vector<std::int64_t> indices() const override;
  std::int64_t size() const override { return size_; }

 private:
  std::int64_t size_;
};

// A permutation drawn from (seed, epoch).
class RandomSampler : public Sampler {
 public:
  explicit RandomSampler(std::int64_t size, std::uint64_t seed = 0);
  std::vector<std::int64_t> indices() const override;
  std::int64_t size() const override { return size_; }

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

struct DistributedSamplerOptions {
  std::int64_t num_replicas = 1;
  std::int64_t rank = 0;
  bool shuffle = true;
  std::uint64_t seed = 0;  // equal on all ranks
  // What happens when the ranks do not divide the samples: true drops the tail of the order, false
  // repeats its beginning, so that every rank has equally many.
  bool drop_last = false;
};

// A rank's share of all samples: places rank, rank + num_replicas, … of an order that all ranks
// agree on. Together the ranks see every sample once per epoch, the padded or dropped tail aside.
class DistributedSampler : public Sampler {
 public:
  // InvalidArgument for a negative size, no replicas, or a rank outside [0, num_replicas).
  DistributedSampler(std::int64_t dataset_size, const DistributedSamplerOptions& options);
  std::vector<std::int64_t> indices() const override;
  std::int64_t size() const override { return size_; }

 private:
  std::int64_t dataset_size_;
  DistributedSamplerOptions options_;
  std::int64_t size_;
};

}  // namespace cohort::data
