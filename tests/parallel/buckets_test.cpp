#include "parallel/buckets.h"

#include <gtest/gtest.h>

#include <numeric>

namespace cohort::parallel {
namespace {

using Buckets = std::vector<std::vector<int>>;

// Items of f32 with these element counts, each a group of its own.
std::vector<BucketItem> items_of(const std::vector<std::int64_t>& counts) {
  std::vector<BucketItem> items;
  for (const std::int64_t count : counts) {
    items.push_back({f32, count, static_cast<int>(items.size())});
  }
  return items;
}

Buckets assign(const std::vector<BucketItem>& items, const BucketCaps& caps) {
  std::vector<int> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  return assign_buckets(items, order, caps);
}

TEST(AssignBuckets, Row49ATensorAsLargeAsTheCapIsABucket) {
  EXPECT_EQ(assign(items_of({100, 200, 100, 50}), {.bytes = 400}), (Buckets{{0}, {1}, {2}, {3}}));
}

// PyTorch has a list of caps, 40 and 80 bytes; here the cap is one, and the last bucket has its
// own.
TEST(AssignBuckets, Row50TheLastBucketHasACapOfItsOwn) {
  EXPECT_EQ(assign(items_of({10, 10, 10, 10}), {.bytes = 80, .last_bytes = 40}),
            (Buckets{{0, 1}, {2}, {3}}));
}

TEST(AssignBuckets, FillsABucketUpToTheCapAndNotBeyond) {
  EXPECT_EQ(assign(items_of({10, 10, 10, 10, 10}), {.bytes = 80}), (Buckets{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(assign(items_of({10, 10, 10}), {.bytes = 119}), (Buckets{{0, 1}, {2}}));
}

TEST(AssignBuckets, FollowsTheGivenOrder) {
  const auto items = items_of({10, 10, 10, 10});
  const std::vector<int> order{3, 1, 0, 2};
  EXPECT_EQ(assign_buckets(items, order, {.bytes = 80}), (Buckets{{3, 1}, {0, 2}}));
}

TEST(AssignBuckets, KeepsDtypesApartInOrderOfReadiness) {
  auto items = items_of({10, 10, 10, 10});
  items[1].dtype = f64;
  items[3].dtype = f64;
  EXPECT_EQ(assign(items, {.bytes = 1000}), (Buckets{{0, 2}, {1, 3}}));
  items[3].dtype = f32;
  items[0].dtype = f64;
  EXPECT_EQ(assign(items, {.bytes = 1000}), (Buckets{{0, 1}, {2, 3}}));
}

TEST(AssignBuckets, NeverSplitsAModule) {
  auto items = items_of({10, 10, 10});
  items[2].group = items[1].group;  // weight and bias of one layer
  EXPECT_EQ(assign(items, {.bytes = 80}), (Buckets{{0}, {1, 2}}));
  EXPECT_EQ(assign(items, {.bytes = 40}), (Buckets{{0}, {1, 2}}));
}

TEST(AssignBuckets, TheLastBucketIsSmall) {
  EXPECT_EQ(assign(items_of({100, 100, 10, 10, 10}), {.bytes = 10000, .last_bytes = 80}),
            (Buckets{{0, 1, 2}, {3, 4}}));
}

TEST(AssignBuckets, TheLastGroupStandsAloneEvenIfItIsLarge) {
  EXPECT_EQ(assign(items_of({100, 100, 100}), {.bytes = 10000, .last_bytes = 80}),
            (Buckets{{0, 1}, {2}}));
}

TEST(AssignBuckets, ASmallModelIsNotSplitForTheLastBucketsSake) {
  EXPECT_EQ(assign(items_of({10, 10}), {.bytes = 10000, .last_bytes = 80}), (Buckets{{0, 1}}));
}

TEST(AssignBuckets, TakesEmptyListsAndEmptyTensors) {
  EXPECT_TRUE(assign({}, {}).empty());
  EXPECT_EQ(assign(items_of({0, 0}), {.bytes = 10, .last_bytes = 5}), (Buckets{{0, 1}}));
}

TEST(LayOutBucket, AlignsEachParameterTo64Bytes) {
  std::vector<BucketItem> items = items_of({1, 16, 17, 0, 3});
  const std::vector<int> bucket{0, 1, 2, 3, 4};
  const BucketLayout layout = lay_out_bucket(items, bucket);
  EXPECT_EQ(layout.offsets, (std::vector<std::int64_t>{0, 16, 32, 64, 64}));
  EXPECT_EQ(layout.elements, 80);
  for (BucketItem& item : items) item.dtype = bf16;
  EXPECT_EQ(lay_out_bucket(items, bucket).offsets, (std::vector<std::int64_t>{0, 32, 64, 96, 96}));
}

}  // namespace
}  // namespace cohort::parallel
