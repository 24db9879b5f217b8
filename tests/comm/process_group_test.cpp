#include "cohort/comm/process_group.h"

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "comm/collective_values.h"

namespace cohort::test {
namespace {

using comm::LocalWorld;
using comm::Operation;
using comm::ProcessGroup;
using comm::ReduceOp;
using comm::Work;
using Group = std::shared_ptr<ProcessGroup>;
using testing::AllOf;
using testing::HasSubstr;

Tensor filled(std::int64_t size, double value, DType dtype = f32) {
  return Tensor::full({size}, value, {.dtype = dtype});
}

TEST(ProcessGroup, KnowsRankSizeNameAndBackend) {
  std::atomic<int> ranks{0};
  LocalWorld(3).run([&](const Group& group) {
    EXPECT_EQ(group->size(), 3);
    EXPECT_EQ(group->rank(), Context::current().runtime()->rank());
    EXPECT_EQ(group->name(), "world");
    EXPECT_EQ(group->backend(), "shm");
    EXPECT_EQ(group->failure(), nullptr);
    ranks += 1 << group->rank();
  });
  EXPECT_EQ(ranks, 7);
}

TEST(ProcessGroup, OfOneNeedsNoQueueAndStillScales) {
  LocalWorld(1).run([](const Group& group) {
    EXPECT_EQ(group->backend(), "self");
    const Tensor tensor = filled(5, 3);
    const Work work = group->all_reduce(tensor, ReduceOp::mean, {.scale = 0.5});
    EXPECT_TRUE(work.ready());
    expect_elements<float>(
        tensor, [](std::int64_t) { return 1.5f; }, "scaled");
    EXPECT_EQ(group->allocate({4, 2}).shape(), (Shape{4, 2}));
    group->barrier().wait();
    EXPECT_EQ(group->split(3)->size(), 1);
    EXPECT_THROW(group->send(tensor, 0), InvalidArgument);
  });
}

TEST(ProcessGroup, RefusesArgumentsAtTheCallAndGoesOn) {
  LocalWorld(2).run([](const Group& group) {
    const Tensor six = filled(6, 1);
    const Tensor odd = filled(5, 1);
    const Tensor ints = filled(6, 1, i32);
    const Tensor meta = Tensor::empty({6}, {.device = Device::meta()});
    const Tensor strided = six.as_strided({3}, {2}, 0);
    const std::vector<std::int64_t> wrong = {1, 2, 3};
    EXPECT_THROW(group->all_reduce(Tensor()), InvalidArgument);
    EXPECT_THROW(group->all_reduce(strided), InvalidArgument);
    EXPECT_THROW(group->all_reduce(meta), NotSupported);
    EXPECT_THROW(group->all_reduce(ints, ReduceOp::mean), DTypeError);
    EXPECT_THROW(group->all_reduce(ints, ReduceOp::sum, {.scale = 2}), DTypeError);
    EXPECT_THROW(group->reduce_scatter(filled(2, 0), odd), ShapeError);
    EXPECT_THROW(group->reduce_scatter(filled(2, 0), six), ShapeError);
    EXPECT_THROW(group->reduce_scatter(filled(3, 0), six, wrong), ShapeError);
    EXPECT_THROW(group->all_gather(filled(11, 0), six), ShapeError);
    EXPECT_THROW(group->all_gather(filled(12, 0, i32), six), DTypeError);
    EXPECT_THROW(group->all_gather(six, six.as_strided({3}, {1}, 1)), InvalidArgument);
    EXPECT_THROW(group->broadcast(six, 2), InvalidArgument);
    EXPECT_THROW(group->all_to_all(six, six), InvalidArgument);
    EXPECT_THROW(group->send(six, group->rank()), InvalidArgument);
    EXPECT_THROW(group->recv(six, -1), InvalidArgument);
    EXPECT_THROW(group->allocate({-1}), ShapeError);
    EXPECT_THROW(group->allocate({1}, {.device = Device::meta()}), NotSupported);
    EXPECT_EQ(group->failure(), nullptr);
    group->all_reduce(six).wait();
    EXPECT_EQ(six.data<float>()[0], 2);
  });
}

TEST(ProcessGroup, RunsCollectivesAsynchronouslyInStreamOrder) {
  LocalWorld(2).run([](const Group& group) {
    const Tensor tensor = filled(100'000, 1);
    const Work first = group->all_reduce(tensor);
    const Work second = group->all_reduce(tensor);
    second.wait();
    EXPECT_TRUE(first.ready());
    expect_elements<float>(
        tensor, [](std::int64_t) { return 4.0f; }, "two sums");
    const auto times = second.times();
    EXPECT_LE(times.enqueued, times.started);
    EXPECT_LE(times.started, times.finished);
    EXPECT_LE(first.times().finished, times.started);
  });
}

TEST(ProcessGroup, ReturnsBeforeThePeersHaveCome) {
  std::atomic<bool> returned{false};
  LocalWorld(2).run([&](const Group& group) {
    const Tensor tensor = filled(10, 1);
    if (group->rank() == 1) {
      while (!returned) std::this_thread::yield();
    }
    const Work work = group->all_reduce(tensor);
    if (group->rank() == 0) {
      EXPECT_FALSE(work.ready());
      returned = true;
    }
    work.wait();
    EXPECT_EQ(tensor.data<float>()[9], 2);
  });
}

TEST(ProcessGroup, KeepsTensorsAliveUntilTheWorkIsDone) {
  LocalWorld(2, {.runtime = {.delay_seed = 5, .cache_memory = false}}).run([](const Group& group) {
    Work work;
    Tensor kept;
    for (int i = 0; i < 20; ++i) {
      const Tensor gone = filled(50'000, i);
      kept = Tensor::empty({100'000});
      group->all_gather(kept, gone);
      work = group->all_reduce(gone);
    }
    work.wait();
    EXPECT_EQ(kept.data<float>()[99'999], 19);
  });
}

TEST(ProcessGroup, MarksWrittenTensorsForAutograd) {
  LocalWorld(2).run([](const Group& group) {
    const Tensor tensor = filled(3, 1);
    const auto before = tensor.storage().version();
    group->all_reduce(tensor).wait();
    EXPECT_GT(tensor.storage().version(), before);
  });
}

TEST(ProcessGroup, CountsOperationsAndBytes) {
  LocalWorld(2).run([](const Group& group) {
    const Tensor symmetric = group->allocate({100'000});
    const Tensor ordinary = Tensor::empty({100'000});
    group->reset_stats();
    symmetric.detach().fill_(1);
    group->all_reduce(symmetric).wait();
    group->broadcast(ordinary, 0).wait();
    group->barrier().wait();
    const comm::GroupStats stats = group->stats();
    EXPECT_EQ(stats.of(Operation::all_reduce).count, 1);
    EXPECT_EQ(stats.of(Operation::all_reduce).logical_bytes, 400'000);
    // A rank writes its half of the result into both buffers.
    EXPECT_NEAR(static_cast<double>(stats.of(Operation::all_reduce).moved_bytes), 400'000, 128);
    EXPECT_EQ(stats.of(Operation::broadcast).moved_bytes, 400'000);
    EXPECT_EQ(stats.of(Operation::barrier).count, 1);
    EXPECT_EQ(stats.total().count, 3);
    EXPECT_GT(stats.total().seconds, 0);
  });
}

TEST(ProcessGroup, SendsShortMessagesWithoutWaitingForTheReceiver) {
  LocalWorld(2).run([](const Group& group) {
    const int peer = 1 - group->rank();
    const std::int64_t elements = group->eager_send_bytes() / 4;
    const Tensor out = filled(elements, group->rank());
    const Tensor in = Tensor::empty({elements});
    group->send(out, peer);
    group->recv(in, peer).wait();
    EXPECT_EQ(in.data<float>()[elements - 1], static_cast<float>(peer));
  });
}

TEST(Split, FormsGroupsByColorInTheOrderOfKeys) {
  LocalWorld(4).run([](const Group& group) {
    const int rank = group->rank();
    const Group half = group->split(rank % 2, -rank);
    ASSERT_NE(half, nullptr);
    EXPECT_EQ(half->size(), 2);
    EXPECT_EQ(half->rank(), rank >= 2 ? 0 : 1);  // the larger rank has the smaller key
    EXPECT_EQ(half->name(), str("world/", rank % 2));
    const Tensor tensor = Tensor::from<float>({static_cast<float>(1 << rank)}, {1});
    half->all_reduce(tensor).wait();
    EXPECT_EQ(tensor.data<float>()[0], rank % 2 == 0 ? 5 : 10);
  });
}

TEST(Split, GivesNothingToANegativeColorAndAGroupOfOneToALoner) {
  LocalWorld(3).run([](const Group& group) {
    const Group part = group->split(group->rank() == 0 ? -1 : group->rank(), 0, "part");
    if (group->rank() == 0) {
      EXPECT_EQ(part, nullptr);
    } else {
      EXPECT_EQ(part->size(), 1);
      EXPECT_EQ(part->name(), "part");
    }
    group->barrier().wait();
  });
}

TEST(Split, GroupsOutliveTheirParentAndHaveSymmetricMemory) {
  LocalWorld(4).run([](const Group& world) {
    const Group pair = world->split(world->rank() / 2);
    const Group inner = pair->split(0);
    const Tensor tensor = inner->allocate({30'000});
    tensor.detach().fill_(world->rank());
    inner->all_reduce(tensor).wait();
    EXPECT_EQ(tensor.data<float>()[29'999], world->rank() < 2 ? 1 : 5);
  });
}

TEST(Split, TwoGroupsOfOneRankAreServedInTheOrderOfTheCalls) {
  LocalWorld(4).run([](const Group& world) {
    const Group row = world->split(world->rank() / 2);
    const Group column = world->split(world->rank() % 2);
    const Tensor tensor = filled(20'000, 1);
    for (int i = 0; i < 10; ++i) {
      row->all_reduce(tensor, ReduceOp::mean);
      column->all_reduce(tensor, ReduceOp::max);
      world->all_reduce(tensor, ReduceOp::mean);
    }
    world->barrier().wait();
    EXPECT_EQ(tensor.data<float>()[7], 1);
  });
}

TEST(SymmetricMemory, IsPooledAndCountedByCategory) {
  LocalWorld(2).run([](const Group& group) {
    const auto live = [] {
      return memory_stats().live[static_cast<std::size_t>(MemoryCategory::gradients)];
    };
    const void* address = nullptr;
    {
      const MemoryCategoryScope scope(MemoryCategory::gradients);
      const Tensor tensor = group->allocate({1'000});
      EXPECT_EQ(live(), 4'000);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(tensor.raw()) % 64, 0u);
      address = tensor.raw();
    }
    EXPECT_EQ(live(), 0);
    group->barrier().wait();
    EXPECT_EQ(group->allocate({900}).raw(), address);
  });
}

TEST(SymmetricMemory, IsNotReusedWhileAnyRankHoldsIt) {
  LocalWorld(2).run([](const Group& group) {
    Tensor first = group->allocate({1'000});
    const void* address = first.raw();
    if (group->rank() == 0) first = Tensor();
    const Tensor second = group->allocate({1'000});
    EXPECT_NE(second.raw(), address);
  });
}

TEST(SymmetricMemory, OutlivesItsGroup) {
  LocalWorld(2).run([](const Group& world) {
    Group pair = world->split(0);
    const Tensor tensor = pair->allocate({1'000});
    pair.reset();
    tensor.detach().fill_(3);
    EXPECT_EQ(tensor.data<float>()[999], 3);
  });
}

TEST(SymmetricMemory, ThatDoesNotFitIsAnErrorOnAllRanksAndHarmsNothing) {
  LocalWorld(2).run([](const Group& group) {
    EXPECT_THAT(message_of<OutOfMemory>([&] { group->allocate({std::int64_t{1} << 44}); }),
                AllOf(HasSubstr("symmetric memory"), HasSubstr("; ranks 0, 1 failed")));
    EXPECT_THROW(group->allocate({std::int64_t{1} << 60}), OutOfMemory);
    EXPECT_EQ(group->failure(), nullptr);
    const Tensor tensor = group->allocate({100});
    tensor.detach().fill_(1);
    group->all_reduce(tensor).wait();
    EXPECT_EQ(tensor.data<float>()[0], 2);
  });
}

TEST(SymmetricMemory, RespectsTheLimitOfAnyRankOnAll) {
  LocalWorld(3).run([](const Group& group) {
    if (group->rank() == 2) {
      Context::current().runtime()->allocator(Device::cpu())->set_limit(1'000'000);
    }
    EXPECT_THAT(message_of<OutOfMemory>([&] { group->allocate({1'000'000}); }),
                HasSubstr(group->rank() == 2 ? "limit of 1000000" : "on rank 2"));
    EXPECT_EQ(group->allocate({1'000}).numel(), 1'000);
  });
}

}  // namespace
}  // namespace cohort::test
