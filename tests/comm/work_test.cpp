#include "cohort/comm/work.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "cohort/core/error.h"
#include "comm/collective_values.h"

namespace cohort::test {
namespace {

using comm::LocalWorld;
using comm::ProcessGroup;
using comm::Work;
using Group = std::shared_ptr<ProcessGroup>;

TEST(Work, ThatNobodyMadeHasFinished) {
  const Work work;
  EXPECT_TRUE(work.ready());
  work.wait();
  work.synchronize();
  EXPECT_EQ(work.error(), nullptr);
  EXPECT_EQ(work.times().finished, Clock::time_point{});
}

TEST(Work, CanBeWaitedForWithADeadlineAndAgain) {
  std::atomic<bool> waited{false};
  LocalWorld(2).run([&](const Group& group) {
    if (group->rank() == 1) {
      while (!waited) std::this_thread::yield();
      group->barrier().wait();
      return;
    }
    const Work work = group->barrier();
    EXPECT_THAT(message_of<TimeoutError>([&] { work.wait(Milliseconds(20)); }),
                testing::HasSubstr("[barrier] not finished after 20 ms"));
    waited = true;
    work.wait();
    EXPECT_TRUE(work.ready());
  });
}

TEST(Work, OrdersALaterStreamThroughItsEvent) {
  LocalWorld(2).run([](const Group& group) {
    const Stream other = Context::current().runtime()->make_stream(Device::cpu(), "other");
    const Tensor tensor = Tensor::full({300'000}, 1);
    const Work work = group->all_reduce(tensor);
    other.wait(work.event());
    float seen = 0;
    other.launch([&] { seen = tensor.raw<float>()[299'999]; });
    other.synchronize();
    EXPECT_EQ(seen, 2);
  });
}

TEST(Work, WaitOrdersAQueuedComputeStreamWithoutBlockingTheHost) {
  LocalWorld(2, {.runtime = {.schedule_seed = 4}}).run([](const Group& group) {
    const Tensor tensor = Tensor::full({1'000}, 1);
    const Work work = group->all_reduce(tensor);
    work.wait();
    tensor.detach().fill_(7);
    EXPECT_EQ(tensor.data<float>()[0], 7);  // data() synchronises: the fill came after the sum
    EXPECT_TRUE(work.ready());
  });
}

}  // namespace
}  // namespace cohort::test
