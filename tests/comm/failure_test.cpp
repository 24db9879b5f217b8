// How a group ends: every rank gets the same cause, named, and nothing hangs. Ranks are threads;
// see shm_process_test.cpp for ranks that are killed and stopped.

#include <gmock/gmock.h>

#include <atomic>
#include <thread>

#include "cohort/core/error.h"
#include "comm/collective_values.h"
#include "comm/worlds.h"

namespace cohort::test {
namespace {

using comm::CollectiveOptions;
using comm::ProcessGroup;
using comm::ReduceOp;
using comm::Work;
using Group = std::shared_ptr<ProcessGroup>;
using testing::AllOf;
using testing::HasSubstr;

Tensor zeros(std::int64_t size, DType dtype = f32) {
  return Tensor::zeros({size}, {.dtype = dtype});
}

// Runs `body` on each rank, expects it to throw E everywhere, and returns the messages.
template <typename E, typename Body>
std::vector<std::string> failures(Over over, int world, Milliseconds timeout, Body body) {
  std::vector<std::string> messages(static_cast<std::size_t>(world));
  World(over, world, {.timeout = timeout}).run([&](const Group& group) {
    messages[static_cast<std::size_t>(group->rank())] = message_of<E>([&] { body(group); });
  });
  return messages;
}

class OverTransports : public testing::TestWithParam<Over> {};
class Mismatch : public OverTransports {};
class Deadline : public OverTransports {};
class Leaving : public OverTransports {};
class Abort : public OverTransports {};
class Failure : public OverTransports {};

std::string over_name(const testing::TestParamInfo<Over>& info) {
  return name(info.param);
}
INSTANTIATE_TEST_SUITE_P(Over, Mismatch, testing::ValuesIn(transports()), over_name);
INSTANTIATE_TEST_SUITE_P(Over, Deadline, testing::ValuesIn(transports()), over_name);
INSTANTIATE_TEST_SUITE_P(Over, Leaving, testing::ValuesIn(transports()), over_name);
INSTANTIATE_TEST_SUITE_P(Over, Abort, testing::ValuesIn(transports()), over_name);
INSTANTIATE_TEST_SUITE_P(Over, Failure, testing::ValuesIn(transports()), over_name);

constexpr Milliseconds kLong{60'000};
constexpr Milliseconds kShort{300};

TEST_P(Mismatch, OfOperationsNamesWhoCalledWhatOnAllRanks) {
  const auto messages = failures<MismatchError>(GetParam(), 2, kLong, [](const Group& group) {
    group->barrier();
    if (group->rank() == 0) {
      group->all_reduce(zeros(12)).wait();
    } else {
      group->all_gather(zeros(10), zeros(5)).wait();
    }
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 0 called all_reduce(sum) of 12 f32"),
                               HasSubstr("rank 1 called all_gather of 10 f32"),
                               HasSubstr("sequence 2"), HasSubstr("group 'world'")));
  }
}

struct Disagreement {
  const char* name;
  std::function<Work(const Group&, bool odd)> call;
  const char* said;
};
class MismatchOf : public testing::TestWithParam<std::tuple<Over, Disagreement>> {};

TEST_P(MismatchOf, IsFoundOnAllRanks) {
  const auto& [over, disagreement] = GetParam();
  const auto call = disagreement.call;
  const auto messages = failures<MismatchError>(
      over, 3, kLong, [&](const Group& group) { call(group, group->rank() == 2).wait(); });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("ranks 0, 1 called"), HasSubstr("rank 2 called"),
                               HasSubstr(disagreement.said)));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, MismatchOf,
    testing::
        Combine(testing::ValuesIn(transports()),
                testing::Values(Disagreement{"Elements",
                                             [](const Group& g, bool odd) {
                                               return g->all_reduce(zeros(odd ? 7 : 8));
                                             },
                                             "of 7 f32"},
                                Disagreement{"Large",
                                             [](const Group& g, bool odd) {
                                               return g->all_reduce(
                                                   zeros(odd ? 1'000'000 : 900'000));
                                             },
                                             "of 900000 f32"},
                                Disagreement{"DType",
                                             [](const Group& g, bool odd) {
                                               return g->all_reduce(zeros(8, odd ? f64 : f32));
                                             },
                                             "of 8 f64"},
                                Disagreement{"ReduceOp",
                                             [](const Group& g, bool odd) {
                                               return g->all_reduce(
                                                   zeros(8), odd ? ReduceOp::max : ReduceOp::sum);
                                             },
                                             "all_reduce(max)"},
                                Disagreement{"Scale",
                                             [](const Group& g, bool odd) {
                                               return g->all_reduce(zeros(8), ReduceOp::sum,
                                                                    {.scale = odd ? 0.5 : 1});
                                             },
                                             "x 0.5"},
                                Disagreement{"Owner",
                                             [](const Group& g, bool odd) {
                                               return g->all_reduce(
                                                   zeros(8), ReduceOp::sum,
                                                   {.owner = odd ? "bucket 3" : "bucket 2"});
                                             },
                                             "(bucket 3)"},
                                Disagreement{"Root",
                                             [](const Group& g, bool odd) {
                                               return g->broadcast(zeros(8), odd ? 1 : 0);
                                             },
                                             "from rank 1"},
                                Disagreement{
                                    "Counts",
                                    [](const Group& g, bool odd) {
                                      const std::vector<std::int64_t> counts =
                                          odd ? std::vector<std::int64_t>{2, 0, 1}
                                              : std::vector<std::int64_t>{1, 1, 1};
                                      return g->all_gather(zeros(3), zeros(1), counts);
                                    },
                                    "different counts"})),
    [](const auto& info) {
      return str(name(std::get<Over>(info.param)), "_", std::get<Disagreement>(info.param).name);
    });

TEST_P(Mismatch, OfTheCountsOfAPairEndsAnAllToAll) {
  const auto messages = failures<MismatchError>(GetParam(), 2, kLong, [](const Group& group) {
    const std::vector<std::int64_t> in = {1, 1};
    const std::vector<std::int64_t> out = {1, 1};
    const std::vector<std::int64_t> in0 = {1, 3};
    if (group->rank() == 0) {
      group->all_to_all(zeros(2), out, zeros(4), in0).wait();
    } else {
      group->all_to_all(zeros(2), out, zeros(2), in).wait();
    }
    group->barrier().wait();
  });
  EXPECT_THAT(messages[1], HasSubstr("rank 0 sends 3 elements to rank 1"));
  EXPECT_EQ(messages[0].substr(messages[0].find(']'), 30),
            messages[1].substr(messages[1].find(']'), 30));
}

TEST_P(Mismatch, OfSentAndReceivedElementsNamesBoth) {
  const auto messages = failures<MismatchError>(GetParam(), 2, kLong, [](const Group& group) {
    if (group->rank() == 0) {
      group->send(zeros(3), 1).wait();
      group->barrier().wait();
    } else {
      group->recv(zeros(4), 0).wait();
    }
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("send(to rank 1) of 3 f32"),
                                 HasSubstr("recv(from rank 0) of 4 f32")));
}

TEST_P(Mismatch, OfTheOrderOfTwoGroupsIsFoundWithoutWaitingForTheDeadline) {
  const auto messages = failures<MismatchError>(GetParam(), 2, kLong, [](const Group& group) {
    const Group a = group->split(0, 0, "a");
    const Group b = group->split(0, 0, "b");
    const Group& first = group->rank() == 0 ? a : b;
    const Group& second = group->rank() == 0 ? b : a;
    first->barrier();
    second->barrier().wait();
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("group 'a'"), HasSubstr("group 'b'"),
                               HasSubstr("different orders")));
  }
}

TEST_P(Deadline, NamesTheMissingRankAndWhereItIs) {
  std::atomic<bool> over{false};
  std::string late;
  const auto messages = failures<TimeoutError>(GetParam(), 3, kShort, [&](const Group& group) {
    group->barrier().wait();
    if (group->rank() == 1) {
      while (!over) std::this_thread::yield();
    }
    try {
      group->all_reduce(zeros(5), ReduceOp::sum, {.owner = "bucket 3"}).wait();
    } catch (...) {
      over = true;
      throw;
    }
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, AllOf(HasSubstr("rank 1 was missing after 300 ms"),
                               HasSubstr("all_reduce(sum) of 5 f32 (bucket 3)"),
                               HasSubstr("rank 1 is in no collective"),
                               HasSubstr("finished barrier (sequence 1)")));
  }
}

TEST_P(Deadline, OfOneCollectiveReplacesTheGroups) {
  std::atomic<bool> over{false};
  failures<TimeoutError>(GetParam(), 2, kLong, [&](const Group& group) {
    if (group->rank() == 1) {
      while (!over) std::this_thread::yield();
      group->barrier().wait();
    }
    try {
      group->barrier({.timeout = kShort}).wait();
    } catch (...) {
      over = true;
      throw;
    }
  });
}

TEST_P(Deadline, EndsASendThatNobodyReceivesAndARecvThatNobodySends) {
  for (const bool sends : {true, false}) {
    std::atomic<bool> over{false};
    const auto messages = failures<TimeoutError>(GetParam(), 2, kShort, [&](const Group& group) {
      if (group->rank() == 1) {
        while (!over) std::this_thread::yield();
        group->barrier().wait();
        return;
      }
      try {
        if (sends) {
          group->send(zeros(100'000), 1).wait();
        } else {
          group->recv(zeros(100'000), 1).wait();
        }
      } catch (...) {
        over = true;
        throw;
      }
    });
    EXPECT_THAT(messages[0], HasSubstr("rank 1 was missing"));
  }
}

TEST_P(Leaving, IsAnErrorForThoseWhoStillWaitAndNamesTheRank) {
  std::string message;
  World(GetParam(), 3, {.timeout = kLong}).run([&](const Group& world) {
    Group group = world->split(0, 0, "part");
    // All have it before one leaves: the failure would reach those who still form it.
    world->barrier().wait();
    if (world->rank() == 2) {
      group.reset();
    } else {
      const std::string text = message_of<PeerError>([&] { group->all_reduce(zeros(4)).wait(); });
      if (world->rank() == 0) message = text;
    }
    world->barrier().wait();
  });
  EXPECT_THAT(message, HasSubstr("rank 2 left the group"));
}

TEST_P(Leaving, WaitsForWhatWasEnqueued) {
  World(GetParam(), 2, {.runtime = {.delay_seed = 3}, .timeout = kLong})
      .run([](const Group& world) {
        Group group = world->split(0);
        const Tensor tensor = Tensor::full({100'000}, 1);
        for (int i = 0; i < 4; ++i) group->all_reduce(tensor);
        group.reset();
        EXPECT_EQ(tensor.data<float>()[99'999], 16);
      });
}

TEST_P(Abort, TellsAllRanksTheReasonAndTheOrigin) {
  const auto messages = failures<PeerError>(GetParam(), 3, kLong, [](const Group& group) {
    if (group->rank() == 1) group->abort("the loader found no data");
    try {
      group->all_reduce(zeros(4)).wait();
    } catch (const PeerError& error) {
      EXPECT_EQ(error.rank(), 1);
      throw;
    }
  });
  for (const std::string& message : messages) {
    EXPECT_THAT(message, HasSubstr("rank 1 failed: the loader found no data"));
  }
}

TEST_P(Abort, HappensWhenAnExceptionLeavesTheScopeOfAGroup) {
  const auto messages = failures<PeerError>(GetParam(), 2, kLong, [](const Group& world) {
    const Group group = world->split(0, 0, "inner");
    if (world->rank() == 1) throw PeerError("a stand-in", 1);
    group->barrier().wait();
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 1 failed"), HasSubstr("left the scope"),
                                 HasSubstr("group 'inner'")));
}

TEST_P(Abort, WakesCollectivesThatWait) {
  failures<PeerError>(GetParam(), 2, kLong, [](const Group& group) {
    const Work work = group->rank() == 0 ? group->barrier() : Work();
    if (group->rank() == 1) group->abort("enough");
    work.wait();
    group->barrier().wait();
  });
}

TEST_P(Failure, StaysTheFirstOneAndLaterCallsThrowItAtOnce) {
  World(GetParam(), 2, {.timeout = kLong}).run([](const Group& group) {
    const Work bad = group->rank() == 0 ? group->all_reduce(zeros(4)) : group->barrier();
    // Enqueued behind it, or refused because the failure is known by then.
    const auto behind = [&]() -> std::exception_ptr {
      try {
        const Work work = group->barrier();
        work.wait();
        return work.error();
      } catch (const MismatchError&) {
        return std::current_exception();
      }
    }();
    EXPECT_THROW(bad.wait(), MismatchError);
    EXPECT_THROW(std::rethrow_exception(behind), MismatchError);
    group->abort("too late to be the cause");
    EXPECT_THROW(group->broadcast(zeros(1), 0), MismatchError);
    EXPECT_THROW(group->allocate({5}), MismatchError);
    EXPECT_THROW(std::rethrow_exception(group->failure()), MismatchError);
  });
}

TEST_P(Failure, OfOneGroupLeavesTheRanksOtherGroupsAlone) {
  World(GetParam(), 2, {.timeout = kLong}).run([](const Group& world) {
    const Group doomed = world->split(0, 0, "doomed");
    const Work bad = world->rank() == 0 ? doomed->all_reduce(zeros(4)) : doomed->barrier();
    const Tensor tensor = Tensor::full({10}, 1);
    world->all_reduce(tensor).wait();
    EXPECT_THROW(bad.wait(), MismatchError);
    EXPECT_EQ(tensor.data<float>()[0], 2);
  });
}

TEST_P(Failure, OfTheWorkThatMakesTheInputReachesAllRanks) {
  for (const std::uint64_t seed : {1u, 2u, 3u}) {
    std::vector<std::string> messages(2);
    World(GetParam(), 2, {.runtime = {.schedule_seed = seed}, .timeout = kLong})
        .run([&](const Group& group) {
          const Tensor tensor = zeros(4);
          const Stream& compute = Context::current().stream(Device::cpu());
          if (group->rank() == 1) compute.launch([] { throw Error("no such kernel"); });
          // The call itself throws where the other rank was faster.
          messages[static_cast<std::size_t>(group->rank())] =
              message_of<Error>([&] { group->all_reduce(tensor).synchronize(); });
          try {
            compute.synchronize();
          } catch (const Error&) {
          }
        });
    EXPECT_THAT(messages[0], HasSubstr("rank 1 failed: no such kernel"));
    EXPECT_THAT(messages[1], HasSubstr("no such kernel"));
  }
}

// The others may still be making their ends of the connections.
TEST_P(Failure, AtOnceAfterFormingTheGroupReachesThoseWhoStillFormIt) {
  for (const bool leaves : {false, true}) {
    for (int round = 0; round < 15; ++round) {
      const auto body = [&](const Group& group) {
        if (group->rank() == 1 && leaves) return;
        if (group->rank() == 1) throw Error("at once");
        group->barrier().wait();
      };
      const std::string message = message_of<Error>(
          [&] { World(GetParam(), 3, {.timeout = kLong}).run(body, /*together=*/false); });
      EXPECT_THAT(message, HasSubstr(leaves ? "rank 1 left" : "at once"));
    }
  }
}

TEST_P(Failure, SurfacesOnAQueuedComputeStreamWhenItIsSynchronised) {
  World(GetParam(), 2, {.runtime = {.schedule_seed = 9}, .timeout = kLong})
      .run([](const Group& group) {
        const Work bad = group->rank() == 0 ? group->all_reduce(zeros(4)) : group->barrier();
        bad.wait();
        EXPECT_THROW(Context::current().stream(Device::cpu()).synchronize(), MismatchError);
      });
}

}  // namespace
}  // namespace cohort::test
