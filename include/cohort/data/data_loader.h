#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/core/stream.h"
#include "cohort/data/dataset.h"
#include "cohort/data/sampler.h"

namespace cohort::data {

struct DataLoaderOptions {
  std::int64_t batch_size = 1;
  // Leave out a last batch that is smaller than the others.
  bool drop_last = false;
  // Batches that a background thread prepares ahead of the loop; 0 prepares each inside the loop,
  // as does a runtime with a seeded scheduler, whose streams know one thread.
  std::int64_t prefetch = 2;
  // Without a sampler: all samples, in order or shuffled anew in each epoch from `seed`.
  bool shuffle = false;
  std::uint64_t seed = 0;
  // Which samples, in which order; excludes `shuffle`.
  std::shared_ptr<Sampler> sampler = nullptr;
  // How long the loop waits for a batch before TimeoutError.
  Milliseconds timeout = kStreamTimeout;
};

// Makes items 0 to count - 1 in order, up to `ahead` of them in advance in a thread of its own.
// What goes wrong there is thrown by next(). Destruction stops the thread, waiting for the item it
// is at. Items are made without recording a graph, and with a range of random numbers of their own
// (reserved from the context's generator), so that `ahead` changes no number.
class Prefetcher {
 public:
  using Make = std::function<std::shared_ptr<void>(std::int64_t index)>;
  Prefetcher(Make make, std::int64_t count, std::int64_t ahead, Milliseconds timeout);
  ~Prefetcher();
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  // The next item; null after the last. After an exception there are no further items.
  std::shared_ptr<void> next();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads a dataset in batches; each begin() starts an epoch:
//
//   data::DataLoader loader(dataset, {.batch_size = 64, .sampler = sampler});
//   for (auto& batch : loader) step(batch.inputs, batch.targets);
//
// An exception of the dataset surfaces in the loop, after the batches before it. Leaving the loop
// early stops the background thread. The loader belongs to one thread; several epochs may be under
// way at once where the dataset's get() allows it.
template <typename BatchType>
class DataLoader {
 public:
  using Batch = BatchType;

  DataLoader(std::shared_ptr<const Dataset<Batch>> dataset, DataLoaderOptions options)
      : dataset_(std::move(dataset)), options_(std::move(options)) {
    check(dataset_ != nullptr, "[DataLoader] the dataset is null");
    check(options_.batch_size > 0, "[DataLoader] batch_size is ", options_.batch_size,
          "; it must be positive");
    check(options_.prefetch >= 0, "[DataLoader] prefetch is ", options_.prefetch);
    check(!options_.shuffle || !options_.sampler,
          "[DataLoader] shuffle and sampler exclude each other; let the sampler shuffle");
    if (options_.shuffle) {
      options_.sampler = std::make_shared<RandomSampler>(dataset_->size(), options_.seed);
    } else if (!options_.sampler) {
      options_.sampler = std::make_shared<SequentialSampler>(dataset_->size());
    }
  }
  // One epoch under way; it owns all it needs.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    Batch& operator*() const { return *batch_; }
    Batch* operator->() const { return batch_.get(); }
    Iterator& operator++() {
      batch_ = std::static_pointer_cast<Batch>(source_->next());
      return *this;
    }
    void operator++(int) { ++*this; }
    friend bool operator==(const Iterator& it, std::default_sentinel_t) { return !it.batch_; }

   private:
    friend class DataLoader;
    explicit Iterator(std::unique_ptr<Prefetcher> source) : source_(std::move(source)) { ++*this; }
    std::unique_ptr<Prefetcher> source_;
    std::shared_ptr<Batch> batch_;
  };

  Iterator begin() {
    auto order = std::make_shared<const std::vector<std::int64_t>>(options_.sampler->indices());
    options_.sampler->set_epoch(options_.sampler->epoch() + 1);
    auto make = [dataset = dataset_, order, batch_size = options_.batch_size](std::int64_t index) {
      const std::span<const std::int64_t> all(*order);
      const auto first = static_cast<std::size_t>(index * batch_size);
      const std::size_t length = std::min(static_cast<std::size_t>(batch_size), all.size() - first);
      return std::static_pointer_cast<void>(
          std::make_shared<Batch>(dataset->get(all.subspan(first, length))));
    };
    return Iterator(std::make_unique<Prefetcher>(std::move(make),
                                                 batches(static_cast<std::int64_t>(order->size())),
                                                 options_.prefetch, options_.timeout));
  }
  std::default_sentinel_t end() const { return {}; }

  // Batches per epoch.
  std::int64_t size() const { return batches(options_.sampler->size()); }
  Sampler& sampler() const { return *options_.sampler; }
  const DataLoaderOptions& options() const { return options_; }

 private:
  std::int64_t batches(std::int64_t samples) const {
    const std::int64_t whole = samples / options_.batch_size;
    return whole + (!options_.drop_last && samples % options_.batch_size != 0 ? 1 : 0);
  }

  std::shared_ptr<const Dataset<Batch>> dataset_;
  DataLoaderOptions options_;
};

template <typename D>
DataLoader(std::shared_ptr<D>, DataLoaderOptions) -> DataLoader<typename D::Batch>;

}  // namespace cohort::data
