#include "cohort/core/memory.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <latch>
#include <string>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"

namespace cohort {
namespace {

constexpr auto kOther = MemoryCategory::other;

// Host memory that counts what is out, and can run dry.
struct CountedSource final : MemorySource {
  explicit CountedSource(std::int64_t* out, std::int64_t capacity = INT64_MAX)
      : out_bytes(out), left(capacity) {}
  void* reserve(std::size_t bytes) override {
    if (static_cast<std::int64_t>(bytes) > left) return nullptr;
    left -= static_cast<std::int64_t>(bytes);
    *out_bytes += static_cast<std::int64_t>(bytes);
    return std::aligned_alloc(kMemoryAlignment, bytes);
  }
  void give_back(void* data, std::size_t bytes) override {
    left += static_cast<std::int64_t>(bytes);
    *out_bytes -= static_cast<std::int64_t>(bytes);
    std::free(data);
  }
  std::int64_t* out_bytes;
  std::int64_t left;
};

class AllocatorTest : public testing::Test {
 protected:
  void make(std::int64_t capacity = INT64_MAX, bool cache = true) {
    allocator = make_caching_allocator(Device::cpu(),
                                       std::make_unique<CountedSource>(&out, capacity), cache);
  }
  std::int64_t out = 0;
  Stream stream = make_inline_stream("s");
  std::unique_ptr<Allocator> allocator;
};

TEST_F(AllocatorTest, AlignsAndCountsInUnitsOf64Bytes) {
  make();
  const auto block = allocator->allocate(1, stream, MemoryCategory::gradients);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(block.data) % 64, 0u);
  const MemoryStats stats = allocator->stats();
  EXPECT_EQ(stats.live[static_cast<std::size_t>(MemoryCategory::gradients)], 64);
  EXPECT_EQ(stats.live_total, 64);
  allocator->free(block, nullptr, 0);
  EXPECT_EQ(allocator->stats().live_total, 0);
  EXPECT_EQ(allocator->stats().peak_total, 64);
}

TEST_F(AllocatorTest, HandsAFreeBlockOutAgainOnTheSameStreamOnly) {
  make();
  const auto first = allocator->allocate(5000, stream, kOther);
  allocator->free(first, nullptr, 0);
  const Stream other = make_inline_stream("other");
  const auto elsewhere = allocator->allocate(5000, other, kOther);
  EXPECT_NE(elsewhere.data, first.data);
  const auto again = allocator->allocate(5000, stream, kOther);
  EXPECT_EQ(again.data, first.data);
  EXPECT_EQ(allocator->stats().cache_hits, 1);
  allocator->free(elsewhere, nullptr, 0);
  allocator->free(again, nullptr, 0);
}

TEST_F(AllocatorTest, HoldsABlockUntilItsReadersHavePassed) {
  make();
  const Stream reader = make_worker_stream("reader");
  std::latch gate(1);
  const auto first = allocator->allocate(5000, stream, kOther);
  reader.launch([&] { gate.wait(); });
  const Event read = reader.record();
  allocator->free(first, &read, 1);
  const auto second = allocator->allocate(5000, stream, kOther);
  EXPECT_NE(second.data, first.data);
  gate.count_down();
  reader.synchronize();
  const auto third = allocator->allocate(5000, stream, kOther);
  EXPECT_EQ(third.data, first.data);
  allocator->free(second, nullptr, 0);
  allocator->free(third, nullptr, 0);
}

TEST_F(AllocatorTest, TheLimitIsAnErrorThatSaysWhatHoldsTheMemoryAndLeavesNothingBehind) {
  make();
  allocator->set_limit(10000);
  const auto held = allocator->allocate(6000, stream, MemoryCategory::parameters);
  try {
    allocator->allocate(6000, stream, MemoryCategory::activations);
    FAIL() << "no error";
  } catch (const OutOfMemory& error) {
    EXPECT_NE(std::string(error.what()).find("limit of 10000"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("parameters: 6016 bytes"), std::string::npos);
  }
  EXPECT_EQ(allocator->stats().live_total, 6016);
  const auto small = allocator->allocate(3000, stream, kOther);
  allocator->free(small, nullptr, 0);
  allocator->free(held, nullptr, 0);
}

TEST_F(AllocatorTest, GivesCachedBlocksBackWhenTheDeviceRunsDry) {
  make(/*capacity=*/20000);
  const auto first = allocator->allocate(12000, stream, kOther);
  allocator->free(first, nullptr, 0);
  const auto second = allocator->allocate(16000, stream, kOther);
  EXPECT_NE(second.data, nullptr);
  EXPECT_THROW(allocator->allocate(16000, stream, kOther), OutOfMemory);
  allocator->free(second, nullptr, 0);
}

TEST_F(AllocatorTest, ReleaseCachedReturnsEverythingThatIsFree) {
  make();
  for (const std::size_t bytes : {100u, 5000u, 100000u}) {
    allocator->free(allocator->allocate(bytes, stream, kOther), nullptr, 0);
  }
  EXPECT_GT(out, 0);
  allocator->release_cached();
  EXPECT_EQ(out, 0);
  EXPECT_EQ(allocator->stats().reserved, 0);
}

TEST_F(AllocatorTest, TheCacheStaysBoundedWhenEverySizeIsNew) {
  make();
  for (std::size_t bytes = 1000; bytes < 400000; bytes += 997) {
    allocator->free(allocator->allocate(bytes, stream, kOther), nullptr, 0);
  }
  // The cache may hold the peak once, before the block that comes on top of it.
  EXPECT_LT(out, 4 * 400000);
}

TEST_F(AllocatorTest, WithoutCacheMemoryGoesBackAtOnce) {
  make(INT64_MAX, /*cache=*/false);
  allocator->free(allocator->allocate(5000, stream, kOther), nullptr, 0);
  EXPECT_EQ(out, 0);
}

TEST(MemoryCategoryScope, CountsTensorsUnderTheCategory) {
  Context context(Runtime::make());
  const ContextScope scope(context);
  const MemoryCategoryScope category(MemoryCategory::optimizer);
  const Tensor tensor = Tensor::empty({100});
  EXPECT_EQ(memory_stats().live[static_cast<std::size_t>(MemoryCategory::optimizer)], 448);
}

TEST(Storage, MemoryGoesAndComesBackUnderItsTensors) {
  Context context(Runtime::make());
  const ContextScope scope(context);
  const Tensor tensor = Tensor::zeros({1000});
  tensor.storage().release_memory();
  EXPECT_EQ(memory_stats().live_total, 0);
  EXPECT_EQ(tensor.raw(), nullptr);
  EXPECT_THROW(tensor.data<float>(), Error);
  tensor.storage().restore_memory();
  EXPECT_EQ(memory_stats().live_total, 4032);
  EXPECT_NE(tensor.data<float>(), nullptr);
}

TEST(Storage, OnTheMetaDeviceCountsWithoutMemory) {
  Context context(Runtime::make());
  const ContextScope scope(context);
  // A terabyte: nothing is touched.
  const Tensor tensor = Tensor::empty({1 << 20, 1 << 18}, {.device = Device::meta()});
  EXPECT_EQ(memory_stats(Device::meta()).live_total, std::int64_t{1} << 40);
  EXPECT_EQ(tensor.raw(), nullptr);
}

}  // namespace
}  // namespace cohort
