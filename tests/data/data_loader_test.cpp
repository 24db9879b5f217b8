#include "cohort/data/data_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/ops/random.h"

namespace cohort::data {
namespace {

using testing::ElementsAre;

// Sample i is the number i.
std::shared_ptr<TensorDataset> numbers(std::int64_t count) {
  return std::make_shared<TensorDataset>(std::vector<Tensor>{Tensor::arange(count)});
}

// What one epoch yields, batch by batch.
template <typename Loader>
std::vector<std::vector<std::int64_t>> epoch_of(Loader& loader) {
  std::vector<std::vector<std::int64_t>> batches;
  for (const auto& batch : loader) batches.push_back(batch[0].template to_vector<std::int64_t>());
  return batches;
}

// A dataset whose batches are what a function says.
class FunctionDataset : public Dataset<std::int64_t> {
 public:
  FunctionDataset(std::int64_t size, std::function<std::int64_t(std::int64_t)> fn)
      : size_(size), fn_(std::move(fn)) {}
  std::int64_t size() const override { return size_; }
  std::int64_t get(std::span<const std::int64_t> indices) const override {
    return fn_(indices.front());
  }

 private:
  std::int64_t size_;
  std::function<std::int64_t(std::int64_t)> fn_;
};

class DataLoaderByPrefetch : public testing::TestWithParam<std::int64_t> {
 protected:
  std::int64_t prefetch() const { return GetParam(); }
};
INSTANTIATE_TEST_SUITE_P(Prefetch, DataLoaderByPrefetch, testing::Values(0, 1, 3, 100));

TEST_P(DataLoaderByPrefetch, YieldsAllSamplesInOrderWithASmallerLastBatch) {
  DataLoader loader(numbers(7), {.batch_size = 3, .prefetch = prefetch()});
  EXPECT_EQ(loader.size(), 3);
  for (int epoch = 0; epoch < 2; ++epoch) {
    EXPECT_THAT(epoch_of(loader),
                ElementsAre(ElementsAre(0, 1, 2), ElementsAre(3, 4, 5), ElementsAre(6)));
  }
}

TEST_P(DataLoaderByPrefetch, DropsTheLastBatchOnRequest) {
  DataLoader loader(numbers(7), {.batch_size = 3, .drop_last = true, .prefetch = prefetch()});
  EXPECT_EQ(loader.size(), 2);
  EXPECT_EQ(epoch_of(loader).size(), 2u);
}

TEST_P(DataLoaderByPrefetch, AnEmptyDatasetHasNoBatches) {
  DataLoader loader(numbers(0), {.prefetch = prefetch()});
  EXPECT_EQ(loader.size(), 0);
  EXPECT_TRUE(epoch_of(loader).empty());
}

TEST_P(DataLoaderByPrefetch, ShufflesAnewInEachEpochUnlessToldWhich) {
  auto sampler = std::make_shared<RandomSampler>(30, 5);
  DataLoader loader(numbers(30), {.batch_size = 4, .prefetch = prefetch(), .sampler = sampler});
  const auto first = epoch_of(loader);
  EXPECT_NE(first, epoch_of(loader));
  sampler->set_epoch(0);
  EXPECT_EQ(first, epoch_of(loader));
  EXPECT_EQ(sampler->epoch(), 1);
}

TEST_P(DataLoaderByPrefetch, ShufflesBySeedWithoutASampler) {
  const auto epoch = [&](std::uint64_t seed) {
    DataLoader loader(numbers(30),
                      {.batch_size = 30, .prefetch = prefetch(), .shuffle = true, .seed = seed});
    return epoch_of(loader)[0];
  };
  EXPECT_EQ(epoch(1), epoch(1));
  EXPECT_NE(epoch(1), epoch(2));
  EXPECT_THAT(epoch(1), testing::UnorderedElementsAreArray(SequentialSampler(30).indices()));
}

TEST_P(DataLoaderByPrefetch, AnExceptionComesAfterTheBatchesBeforeIt) {
  auto dataset = std::make_shared<FunctionDataset>(6, [](std::int64_t i) {
    if (i == 3) throw std::out_of_range("sample 3 is bad");
    return i;
  });
  DataLoader loader(dataset, {.prefetch = prefetch()});
  std::vector<std::int64_t> seen;
  try {
    for (const std::int64_t value : loader) seen.push_back(value);
    ADD_FAILURE() << "no exception";
  } catch (const std::out_of_range& error) {
    EXPECT_STREQ(error.what(), "sample 3 is bad");
  }
  EXPECT_THAT(seen, ElementsAre(0, 1, 2));
  // The next epoch starts afresh.
  auto epoch = loader.begin();
  EXPECT_EQ(*epoch, 0);
}

TEST_P(DataLoaderByPrefetch, ABadIndexOfTheSamplerIsAnError) {
  DataLoader loader(numbers(3),
                    {.prefetch = prefetch(), .sampler = std::make_shared<SequentialSampler>(4)});
  EXPECT_THROW(epoch_of(loader), InvalidArgument);
}

TEST_P(DataLoaderByPrefetch, LeavingTheLoopEarlyEndsTheEpoch) {
  std::atomic<std::int64_t> made = 0;
  auto dataset = std::make_shared<FunctionDataset>(1000, [&](std::int64_t i) {
    ++made;
    return i;
  });
  DataLoader loader(dataset, {.prefetch = prefetch()});
  for (const std::int64_t value : loader) {
    if (value == 1) break;
  }
  const std::int64_t after_break = made;
  // Two taken, the prefetched ones, and the one under way when the loop was left.
  EXPECT_LE(after_break, 2 + prefetch() + 1);
  EXPECT_EQ(dataset.use_count(), 2);  // the epoch has let go of it
  EXPECT_EQ(made, after_break);
}

TEST_P(DataLoaderByPrefetch, DrawsTheSameRandomNumbersWhateverThePrefetch) {
  const auto draw = [](std::int64_t ahead) {
    auto dataset = std::make_shared<FunctionDataset>(5, [](std::int64_t) {
      return static_cast<std::int64_t>(Context::current().generator.reserve(8).bits(0));
    });
    manual_seed(11);
    DataLoader loader(dataset, {.prefetch = ahead});
    std::vector<std::int64_t> numbers;
    for (int epoch = 0; epoch < 2; ++epoch) {
      for (const std::int64_t value : loader) {
        numbers.push_back(value);
        // The loop's own numbers are others, and do not disturb the dataset's.
        numbers.push_back(
            static_cast<std::int64_t>(Context::current().generator.reserve(4).bits(0)));
      }
    }
    return numbers;
  };
  const std::vector<std::int64_t> drawn = draw(prefetch());
  EXPECT_EQ(drawn, draw(0));
  EXPECT_EQ(std::set<std::int64_t>(drawn.begin(), drawn.end()).size(), drawn.size());
}

TEST_P(DataLoaderByPrefetch, BatchesRecordNoGraphAndBelongToTheLoopsRuntime) {
  const auto runtime = Runtime::make({.rank = 3});
  Context context(runtime);
  const ContextScope scope(context);
  auto dataset = std::make_shared<FunctionDataset>(2, [&](std::int64_t i) {
    EXPECT_FALSE(Context::current().grad_enabled);
    EXPECT_EQ(Context::current().runtime(), runtime);
    return i;
  });
  DataLoader loader(dataset, {.prefetch = prefetch()});
  for (const std::int64_t value : loader) EXPECT_GE(value, 0);
  EXPECT_TRUE(Context::current().grad_enabled);
}

TEST(DataLoader, PreparesBatchesWhileTheLoopIsBusy) {
  std::mutex mutex;
  std::condition_variable changed;
  std::int64_t made = 0;
  auto dataset = std::make_shared<FunctionDataset>(10, [&](std::int64_t i) {
    const std::lock_guard lock(mutex);
    ++made;
    changed.notify_all();
    return i;
  });
  DataLoader loader(dataset, {.prefetch = 3});
  auto epoch = loader.begin();
  std::unique_lock lock(mutex);
  // One is in the loop's hands and three are ready, without the loop asking for them.
  EXPECT_TRUE(changed.wait_for(lock, std::chrono::seconds(60), [&] { return made == 4; }));
}

TEST(DataLoader, AWaitThatTakesTooLongIsAnError) {
  std::atomic<bool> release = false;
  auto dataset = std::make_shared<FunctionDataset>(2, [&](std::int64_t i) {
    if (i == 1) release.wait(false);
    return i;
  });
  DataLoader loader(dataset, {.prefetch = 1, .timeout = Milliseconds(20)});
  auto epoch = loader.begin();
  EXPECT_THROW(++epoch, TimeoutError);
  release = true;
  release.notify_all();
}

TEST(DataLoader, AnIteratorOutlivesItsLoader) {
  auto loader = std::make_unique<DataLoader<std::vector<Tensor>>>(
      numbers(4), DataLoaderOptions{.batch_size = 2, .prefetch = 1});
  auto epoch = loader->begin();
  loader.reset();
  ++epoch;
  EXPECT_THAT((*epoch)[0].to_vector<std::int64_t>(), ElementsAre(2, 3));
}

TEST(DataLoader, WorksInlineUnderASeededScheduler) {
  Context context(Runtime::make({.schedule_seed = 4}));
  const ContextScope scope(context);
  DataLoader loader(numbers(5), {.batch_size = 2, .prefetch = 2});
  EXPECT_THAT(epoch_of(loader), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
}

TEST(DataLoader, RefusesImpossibleOptions) {
  EXPECT_THROW(DataLoader(numbers(3), {.batch_size = 0}), InvalidArgument);
  EXPECT_THROW(DataLoader(numbers(3), {.prefetch = -1}), InvalidArgument);
  EXPECT_THROW(
      DataLoader(numbers(3), {.shuffle = true, .sampler = std::make_shared<SequentialSampler>(3)}),
      InvalidArgument);
  EXPECT_THROW(DataLoader(std::shared_ptr<TensorDataset>(), {}), InvalidArgument);
}

}  // namespace
}  // namespace cohort::data
