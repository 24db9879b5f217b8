#include "cohort/core/stream.h"

#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <thread>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"

namespace cohort {
namespace {

Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

TEST(InlineStream, RunsWorkBeforeLaunchReturns) {
  const Stream stream = make_inline_stream("inline");
  int value = 0;
  stream.launch([&] { value = 1; });
  EXPECT_EQ(value, 1);
  EXPECT_TRUE(stream.record().ready());
}

TEST(WorkerStream, RunsWorkInOrder) {
  const Stream stream = make_worker_stream("worker", {.delay_seed = 7});
  std::vector<int> order;
  for (int i = 0; i < 20; ++i) stream.launch([&order, i] { order.push_back(i); });
  stream.synchronize(soon());
  ASSERT_EQ(order.size(), 20u);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(order[static_cast<std::size_t>(i)], i);
}

TEST(WorkerStream, WaitsForAnEventOfAnotherStream) {
  const Stream producer = make_worker_stream("producer");
  const Stream consumer = make_worker_stream("consumer");
  std::latch gate(1);
  int value = 0;
  int seen = 0;
  producer.launch([&] {
    gate.wait();
    value = 42;
  });
  const Event produced = producer.record();
  consumer.wait(produced);
  consumer.launch([&] { seen = value; });
  EXPECT_FALSE(produced.ready());
  gate.count_down();
  consumer.synchronize(soon());
  EXPECT_EQ(seen, 42);
  EXPECT_TRUE(produced.ready());
}

TEST(WorkerStream, AnErrorDropsLaterWorkAndReachesEventsUntilSynchronizeTakesIt) {
  const Stream stream = make_worker_stream("worker");
  std::atomic<bool> ran{false};
  stream.launch([] { throw InvalidArgument("first"); });
  stream.launch([&] { ran = true; });
  const Event after = stream.record();
  EXPECT_THROW(after.synchronize(soon()), InvalidArgument);
  EXPECT_THROW(stream.synchronize(soon()), InvalidArgument);
  EXPECT_FALSE(ran);
  stream.launch([&] { ran = true; });
  stream.synchronize(soon());
  EXPECT_TRUE(ran);
}

TEST(WorkerStream, AnErrorBeforeAnAwaitedEventReachesTheWaitingStream) {
  const Stream producer = make_worker_stream("producer");
  const Stream consumer = make_worker_stream("consumer");
  producer.launch([] { throw InvalidArgument("broken"); });
  consumer.wait(producer.record());
  EXPECT_THROW(consumer.synchronize(soon()), InvalidArgument);
}

TEST(WorkerStream, SynchronizeGivesUpAtTheDeadline) {
  const Stream stream = make_worker_stream("worker");
  std::latch gate(1);
  stream.launch([&] { gate.wait(); });
  EXPECT_THROW(stream.synchronize(Deadline::after(Milliseconds(10))), TimeoutError);
  gate.count_down();
  stream.synchronize(soon());
}

TEST(WorkerStream, FinishesItsQueueBeforeItGoes) {
  std::atomic<int> count{0};
  {
    const Stream stream = make_worker_stream("worker");
    for (int i = 0; i < 100; ++i) stream.launch([&] { ++count; });
  }
  EXPECT_EQ(count, 100);
}

TEST(WorkerStream, MayBeReleasedByItsOwnTask) {
  auto holder = std::make_shared<Stream>(make_worker_stream("worker"));
  std::latch done(1);
  const Stream& stream = *holder;
  std::latch released(1);
  stream.launch([&, holder]() mutable {
    released.wait();
    holder.reset();
    done.count_down();
  });
  holder.reset();
  released.count_down();
  done.wait();
}

TEST(WorkerStream, CarriesTheContextOfTheCallerWithInlineOperations) {
  const Stream stream = make_worker_stream("worker");
  Context mine(Runtime::make({.rank = 5}));
  const ContextScope scope(mine);
  mine.grad_enabled = false;
  int rank = -1;
  bool grad = true;
  bool runs_inline = false;
  stream.launch([&] {
    rank = Context::current().runtime()->rank();
    grad = Context::current().grad_enabled;
    runs_inline = Context::current().stream(Device::cpu()).runs_inline();
  });
  stream.synchronize(soon());
  EXPECT_EQ(rank, 5);
  EXPECT_FALSE(grad);
  EXPECT_TRUE(runs_inline);
}

}  // namespace
}  // namespace cohort
