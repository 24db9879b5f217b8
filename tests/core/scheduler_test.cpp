#include "cohort/core/scheduler.h"

#include <gtest/gtest.h>

#include <set>
#include <string>
#include <thread>

#include "cohort/core/context.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

// Two independent streams write letters; the string shows the interleaving.
std::string interleaving(std::uint64_t seed, std::uint64_t* hash = nullptr) {
  SeededScheduler scheduler(seed);
  const Stream a = scheduler.make_stream("a");
  const Stream b = scheduler.make_stream("b");
  std::string order;
  for (int i = 0; i < 6; ++i) {
    a.launch([&] { order += 'a'; });
    b.launch([&] { order += 'b'; });
  }
  a.synchronize();
  b.synchronize();
  if (hash != nullptr) *hash = scheduler.order_hash();
  return order;
}

TEST(SeededScheduler, ReplaysItsOrderFromTheSeed) {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  EXPECT_EQ(interleaving(3, &first), interleaving(3, &second));
  EXPECT_EQ(first, second);
}

TEST(SeededScheduler, DifferentSeedsGiveDifferentOrders) {
  std::set<std::string> orders;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) orders.insert(interleaving(seed));
  EXPECT_GT(orders.size(), 10u);
}

TEST(SeededScheduler, KeepsTheOrderWithinAStreamAndAcrossEvents) {
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SeededScheduler scheduler(seed);
    const Stream producer = scheduler.make_stream("producer");
    const Stream consumer = scheduler.make_stream("consumer");
    int value = 0;
    int seen = -1;
    producer.launch([&] { value = 1; });
    producer.launch([&] { value = 2; });
    consumer.wait(producer.record());
    consumer.launch([&] { seen = value; });
    consumer.synchronize();
    EXPECT_EQ(seen, 2) << "seed " << seed;
  }
}

// Two buffers by turns: `fill` of the next value has to wait for `use` of the one before the last.
// Without that wait only a stream that stays two tasks behind shows the fault.
TEST(SeededScheduler, FindsThatABufferIsFilledAgainTooEarly) {
  const auto wrong_values = [](std::uint64_t seed, bool waits) {
    SeededScheduler scheduler(seed);
    const Stream fill = scheduler.make_stream("fill");
    const Stream use = scheduler.make_stream("use");
    int buffers[2] = {-1, -1};
    int wrong = 0;
    Event used[2];
    for (int i = 0; i < 40; ++i) {
      if (waits) fill.wait(used[i % 2]);
      fill.launch([&, i] { buffers[i % 2] = i; });
      use.wait(fill.record());
      use.launch([&, i] { wrong += buffers[i % 2] == i ? 0 : 1; });
      used[i % 2] = use.record();
    }
    use.synchronize();
    return wrong;
  };
  int found = 0;
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(wrong_values(seed, true), 0) << "seed " << seed;
    found += wrong_values(seed, false) > 0 ? 1 : 0;
  }
  EXPECT_GE(found, 3);
}

TEST(SeededScheduler, FindsAMissingDependency) {
  std::set<int> seen;
  for (std::uint64_t seed = 1; seed <= 50; ++seed) {
    SeededScheduler scheduler(seed);
    const Stream producer = scheduler.make_stream("producer");
    const Stream consumer = scheduler.make_stream("consumer");
    int value = 0;
    producer.launch([&] { value = 1; });
    consumer.launch([&, value_of = &value] { seen.insert(*value_of); });
    consumer.synchronize();
    producer.synchronize();
  }
  EXPECT_EQ(seen, (std::set<int>{0, 1}));
}

TEST(SeededScheduler, TwoStreamsThatWaitForEachOtherAreAnErrorAndNoHang) {
  SeededScheduler scheduler(1);
  const Stream a = scheduler.make_stream("a");
  SeededScheduler other(1);
  const Stream b = other.make_stream("b");
  // An event of another scheduler that nobody runs.
  std::string order;
  Event never;
  for (int i = 0; i < 50 && (i == 0 || never.ready()); ++i) {
    b.launch([] {});
    never = b.record();
  }
  ASSERT_FALSE(never.ready());
  a.wait(never);
  EXPECT_THROW(a.synchronize(), Error);
}

TEST(SeededScheduler, IsConfinedToItsThread) {
  SeededScheduler scheduler(1);
  const Stream stream = scheduler.make_stream("a");
  std::string message;
  std::thread([&] {
    try {
      stream.launch([] {});
    } catch (const Error& error) {
      message = error.what();
    }
  }).join();
  EXPECT_NE(message.find("another thread"), std::string::npos);
}

TEST(SeededScheduler, CarriesErrorsAsWorkerStreamsDo) {
  SeededScheduler scheduler(2);
  const Stream stream = scheduler.make_stream("a");
  stream.launch([] { throw InvalidArgument("broken"); });
  const Event after = stream.record();
  EXPECT_THROW(after.synchronize(Deadline::after(std::chrono::seconds(5))), InvalidArgument);
  EXPECT_THROW(stream.synchronize(), InvalidArgument);
  stream.synchronize();
}

TEST(Runtime, WithAScheduleSeedQueuesTheComputeStreamToo) {
  Context context(Runtime::make({.schedule_seed = 9}));
  EXPECT_FALSE(context.stream(Device::cpu()).runs_inline());
  EXPECT_NE(context.runtime()->scheduler(), nullptr);
}

}  // namespace
}  // namespace cohort
