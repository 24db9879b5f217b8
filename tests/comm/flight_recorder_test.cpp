// What a rank remembers of its collectives, and the files it writes.

#include "comm/flight_recorder.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "cohort/core/error.h"
#include "comm/collective_values.h"
#include "comm/dump_signal.h"
#include "support/child_process.h"

namespace cohort::test {
namespace {

namespace fs = std::filesystem;
using comm::FlightEntry;
using comm::FlightRecord;
using comm::FlightRecorderOptions;
using comm::FlightRing;
using comm::FlightState;
using comm::LocalWorld;
using comm::LocalWorldOptions;
using comm::ReduceOp;
using Group = std::shared_ptr<comm::ProcessGroup>;
using Json = nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// A folder of one test.
class TraceDir {
 public:
  TraceDir()
      : path_(fs::temp_directory_path() /
              str("cohort-flight-", ::getpid(), "-",
                  testing::UnitTest::GetInstance()->current_test_info()->name())) {
    fs::remove_all(path_);
  }
  ~TraceDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  std::string string() const { return path_.string(); }
  fs::path file(int rank) const { return path_ / str("flight-rank", rank, ".json"); }
  Json read(int rank) const {
    std::ifstream stream(file(rank));
    return Json::parse(stream);
  }

 private:
  const fs::path path_;
};

FlightEntry entry_of(std::uint64_t number) {
  FlightEntry entry;
  entry.sequence = number;
  entry.enqueued = static_cast<std::int64_t>(number);
  entry.elements = static_cast<std::int64_t>(number);
  std::snprintf(entry.owner, sizeof(entry.owner), "%llu", static_cast<unsigned long long>(number));
  return entry;
}

Clock::time_point moment(std::int64_t ns) {
  return Clock::time_point(std::chrono::nanoseconds(ns));
}

TEST(FlightRing, KeepsTheLastOnesInTheirOrder) {
  FlightRing ring(4);
  EXPECT_TRUE(ring.read().empty());
  for (std::uint64_t i = 1; i <= 10; ++i) EXPECT_EQ(ring.enqueue(entry_of(i)), i);
  std::vector<std::uint64_t> sequences;
  for (const FlightRecord& record : ring.read()) sequences.push_back(record.entry.sequence);
  EXPECT_THAT(sequences, ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(ring.recorded(), 10u);
}

TEST(FlightRing, FollowsACollectiveToItsEnd) {
  FlightRing ring(4);
  const std::uint64_t ticket = ring.enqueue(entry_of(1));
  EXPECT_EQ(ring.read()[0].state, FlightState::enqueued);
  ring.advance(ticket, FlightState::started, moment(20));
  EXPECT_EQ(ring.read()[0].state, FlightState::started);
  EXPECT_EQ(ring.read()[0].entry.started, 20);
  ring.advance(ticket, FlightState::failed, moment(30));
  EXPECT_EQ(ring.read()[0].state, FlightState::failed);
  EXPECT_EQ(ring.read()[0].entry.finished, 30);
}

TEST(FlightRing, LeavesALaterCollectiveAloneWhenTheQueueIsAWholeRingBehind) {
  FlightRing ring(2);
  const std::uint64_t old = ring.enqueue(entry_of(1));
  ring.enqueue(entry_of(2));
  ring.enqueue(entry_of(3));
  ring.advance(old, FlightState::finished, moment(9));
  const auto records = ring.read();
  ASSERT_EQ(records.size(), 2u);
  EXPECT_EQ(records[1].entry.sequence, 3u);
  EXPECT_EQ(records[1].state, FlightState::enqueued);
  EXPECT_EQ(records[1].entry.finished, 0);
}

TEST(FlightRing, IsReadWholeWhileTwoThreadsWrite) {
  constexpr std::uint64_t kCount = 20'000;
  FlightRing ring(8);
  std::atomic<std::uint64_t> enqueued{0};
  std::thread host([&] {
    for (std::uint64_t i = 1; i <= kCount; ++i) {
      ring.enqueue(entry_of(i));
      enqueued.store(i, std::memory_order_release);
    }
  });
  std::thread queue([&] {
    for (std::uint64_t i = 1; i <= kCount; ++i) {
      while (enqueued.load(std::memory_order_acquire) < i) std::this_thread::yield();
      ring.advance(i, FlightState::started, moment(static_cast<std::int64_t>(i)));
      ring.advance(i, FlightState::finished, moment(static_cast<std::int64_t>(i)));
    }
  });
  std::uint64_t reads = 0;
  while (enqueued.load(std::memory_order_acquire) < kCount || reads == 0) {
    for (const FlightRecord& record : ring.read()) {
      const auto number = static_cast<std::int64_t>(record.ticket);
      EXPECT_EQ(record.entry.elements, number);
      EXPECT_EQ(record.entry.owner, std::to_string(number));
      EXPECT_EQ(record.entry.started, record.state >= FlightState::started ? number : 0);
      EXPECT_EQ(record.entry.finished, record.state == FlightState::finished ? number : 0);
      ++reads;
    }
  }
  host.join();
  queue.join();
}

LocalWorldOptions recording_to(const TraceDir& folder, std::int64_t size = 1024) {
  return {.timeout = Milliseconds(60'000),
          .flight_recorder = FlightRecorderOptions{.size = size, .trace_dir = folder.string()}};
}

TEST(FlightRecord, SaysWhatAGroupDid) {
  const TraceDir folder;
  LocalWorld(2, {.flight_recorder = FlightRecorderOptions{}}).run([&](const Group& group) {
    const Tensor tensor = Tensor::ones({12});
    group->all_reduce(tensor, ReduceOp::mean, {.scale = 0.5, .owner = "bucket 3"}).wait();
    group->broadcast(tensor, 1).wait();
    if (group->rank() == 0) {
      group->send(tensor, 1).wait();
    } else {
      group->recv(tensor, 0).wait();
    }
    group->barrier().wait();
    const std::string path = folder.file(group->rank()).string();
    fs::create_directories(folder.string());
    comm::dump_flight_record(path);
    const Json dump = folder.read(group->rank());
    EXPECT_EQ(dump["format"], "cohort-flight-record");
    EXPECT_EQ(dump["version"], 1);
    EXPECT_EQ(dump["rank"], group->rank());
    EXPECT_EQ(dump["reason"], "request");
    EXPECT_EQ(dump["recorded"], 4);
    EXPECT_EQ(dump["exception"], nullptr);
    const Json& world = dump["groups"][0];
    EXPECT_EQ(world["name"], "world");
    EXPECT_EQ(world["backend"], "shm");
    EXPECT_EQ(world["rank"], group->rank());
    EXPECT_EQ(world["ranks"], Json({0, 1}));
    EXPECT_EQ(world["collectives"], 3);
    EXPECT_EQ(world["failure"], nullptr);
    EXPECT_EQ(world["left"], false);
    const Json& reduced = dump["records"][0];
    EXPECT_EQ(reduced["operation"], "all_reduce");
    EXPECT_EQ(reduced["reduce"], "mean");
    EXPECT_EQ(reduced["scale"], 0.5);
    EXPECT_EQ(reduced["dtype"], "f32");
    EXPECT_EQ(reduced["elements"], 12);
    EXPECT_EQ(reduced["owner"], "bucket 3");
    EXPECT_EQ(reduced["sequence"], 1);
    EXPECT_EQ(reduced["peer"], nullptr);
    EXPECT_EQ(reduced["state"], "finished");
    EXPECT_LE(reduced["enqueued_ns"], reduced["started_ns"]);
    EXPECT_LE(reduced["started_ns"], reduced["finished_ns"]);
    EXPECT_LE(reduced["finished_ns"], dump["written_ns"]);
    EXPECT_EQ(dump["records"][1]["peer"], 1);
    EXPECT_EQ(dump["records"][1]["reduce"], nullptr);
    // Messages have numbers of their own: the third rank of a group knows nothing of them.
    EXPECT_EQ(dump["records"][2]["sequence"], 1);
    EXPECT_EQ(dump["records"][2]["peer"], 1 - group->rank());
    EXPECT_EQ(dump["records"][3]["operation"], "barrier");
    EXPECT_EQ(dump["records"][3]["sequence"], 3);
  });
}

TEST(FlightRecord, KnowsTheMembersOfASplitGroupByTheirRanksInTheWorld) {
  const TraceDir folder;
  LocalWorld(4, recording_to(folder)).run([](const Group& world) {
    const Group half = world->split(world->rank() % 2, -world->rank(), "half");
    const Group pair = half->split(0);
    pair->barrier().wait();
  });
  const Json dump = folder.read(1);
  EXPECT_EQ(dump["groups"][0]["ranks"], Json({0, 1, 2, 3}));
  EXPECT_EQ(dump["groups"][1]["ranks"], Json({3, 1}));
  EXPECT_EQ(dump["groups"][1]["rank"], 1);
  EXPECT_EQ(dump["groups"][2]["ranks"], Json({3, 1}));
  EXPECT_EQ(dump["groups"][2]["name"], "half/0");
}

TEST(FlightRecord, IsWrittenOnEveryRankWhenAGroupFails) {
  const TraceDir folder;
  EXPECT_THROW(LocalWorld(3, recording_to(folder)).run([&](const Group& group) {
    group->barrier().wait();
    try {
      group->all_reduce(Tensor::ones({group->rank() == 1 ? 5 : 4})).wait();
    } catch (const MismatchError&) {
      // Before the error reaches the program.
      EXPECT_TRUE(fs::exists(folder.file(group->rank())));
      throw;
    }
  }),
               MismatchError);
  for (int rank = 0; rank < 3; ++rank) {
    const Json dump = folder.read(rank);
    EXPECT_EQ(dump["reason"], "failure");
    EXPECT_THAT(dump["groups"][0]["failure"].get<std::string>(), HasSubstr("rank 1 called"));
    EXPECT_EQ(dump["records"][1]["state"], "failed");
    EXPECT_THAT(dump["records"][1]["error"].get<std::string>(), HasSubstr("rank 1 called"));
    EXPECT_EQ(dump["records"][1]["elements"], rank == 1 ? 5 : 4);
    EXPECT_EQ(dump["exception"], nullptr) << "the echo of a collective's error is none of its own";
  }
}

TEST(FlightRecord, IsWrittenByARankThatWasInNoCollectiveWhenItsGroupFailed) {
  const TraceDir folder;
  LocalWorld(2, recording_to(folder)).run([](const Group& group) {
    group->barrier().wait();
    if (group->rank() == 0) {
      group->abort("enough");
      return;
    }
    while (!group->failure()) std::this_thread::yield();
    EXPECT_THROW(group->barrier(), PeerError);
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(folder.read(rank)["groups"][0]["failure"].get<std::string>(), HasSubstr("enough"));
    EXPECT_EQ(folder.read(rank)["records"].size(), 1u);
  }
}

TEST(FlightRecord, HoldsTheExceptionOfTheRankThatFailed) {
  const TraceDir folder;
  EXPECT_THROW(LocalWorld(2, recording_to(folder)).run([](const Group& group) {
    group->barrier().wait();
    if (group->rank() == 1) throw Error("no such file");
    group->barrier().wait();
  }),
               Error);
  EXPECT_EQ(folder.read(1)["exception"], "no such file");
  EXPECT_EQ(folder.read(0)["exception"], nullptr);
  EXPECT_THAT(folder.read(0)["groups"][0]["failure"].get<std::string>(),
              HasSubstr("rank 1 failed: no such file"));
}

TEST(FlightRecord, IsWrittenWhenTheLastGroupIsLeft) {
  const TraceDir folder;
  LocalWorld(2, recording_to(folder)).run([&](const Group& world) {
    world->split(0)->barrier().wait();
    EXPECT_FALSE(fs::exists(folder.file(world->rank())));
    world->barrier().wait();
  });
  for (int rank = 0; rank < 2; ++rank) {
    const Json dump = folder.read(rank);
    EXPECT_EQ(dump["reason"], "left");
    EXPECT_EQ(dump["groups"][0]["left"], true);
    EXPECT_EQ(dump["groups"][1]["left"], true);
    EXPECT_EQ(dump["records"].size(), 3u);
  }
}

TEST(FlightRecord, OfARefusedAllocationIsNoFailureOfTheGroup) {
  const TraceDir folder;
  LocalWorldOptions options = recording_to(folder);
  options.runtime.memory_limit = 1 << 20;
  LocalWorld(2, options).run([&](const Group& group) {
    EXPECT_THROW(group->allocate({1 << 20}), OutOfMemory);
    EXPECT_FALSE(fs::exists(folder.file(group->rank())));
  });
  const Json dump = folder.read(0);
  EXPECT_EQ(dump["groups"][0]["failure"], nullptr);
  EXPECT_EQ(dump["records"][0]["state"], "failed");
}

TEST(FlightRecord, HasOnlyTheLastCollectives) {
  const TraceDir folder;
  LocalWorld(2, recording_to(folder, 3)).run([](const Group& group) {
    for (int i = 0; i < 10; ++i) group->barrier().wait();
  });
  const Json dump = folder.read(0);
  EXPECT_EQ(dump["recorded"], 10);
  EXPECT_EQ(dump["groups"][0]["collectives"], 10);
  ASSERT_EQ(dump["records"].size(), 3u);
  EXPECT_EQ(dump["records"][0]["sequence"], 8);
}

TEST(FlightRecord, OfSizeZeroIsNotKept) {
  const TraceDir folder;
  LocalWorld(2, recording_to(folder, 0)).run([](const Group& group) { group->barrier().wait(); });
  EXPECT_FALSE(fs::exists(folder.file(0)));
}

TEST(FlightRecord, ThatCannotBeWrittenIsAnErrorOfTheCallAndNoneOfACollective) {
  LocalWorld(2, {.timeout = Milliseconds(60'000),
                 .flight_recorder = FlightRecorderOptions{.trace_dir = "/proc/no/such/folder"}})
      .run([](const Group& group) {
        EXPECT_THAT(message_of<FileError>([] { comm::dump_flight_record("/proc/none/file"); }),
                    AllOf(HasSubstr("[flight_recorder]"), HasSubstr("/proc/none/file")));
        const comm::Work bad =
            group->rank() == 0 ? group->all_reduce(Tensor::ones({1})) : group->barrier();
        EXPECT_THROW(bad.wait(), MismatchError);
      });
}

TEST(FlightRecord, SummaryTellsWhereTheRankIs) {
  std::string summary;
  LocalWorld(2, {.timeout = Milliseconds(60'000)}).run([&](const Group& group) {
    group->barrier().wait();
    auto& runtime = *Context::current().runtime();
    if (group->rank() == 1) return group->all_reduce(Tensor::ones({3})).wait();
    const comm::Work work = group->all_reduce(Tensor::ones({3}), ReduceOp::sum);
    work.wait();
    summary = comm::FlightRecorder::of(runtime)->summary();
  });
  EXPECT_THAT(summary,
              AllOf(HasSubstr("[rank 0] group 'world' (shm, rank 0 of 2): in no "
                              "collective; all_reduce(sum) of 3 f32 (sequence 2) finished"),
                    HasSubstr(" s ago")));
}

TEST(SignatureCheck, CanBeLeftOutForMeasuring) {
  LocalWorld(2, {.timeout = Milliseconds(60'000),
                 .flight_recorder = FlightRecorderOptions{.check_signatures = false}})
      .run([](const Group& group) {
        const Tensor one = Tensor::ones({1});
        const char* owner = group->rank() == 0 ? "bucket 0" : "bucket 1";
        group->all_reduce(one, ReduceOp::sum, {.owner = owner}).wait();
        EXPECT_EQ(one.item(), 2);
      });
}

struct Variable {
  const char* name;
  const char* value;
};
class FlightVariables : public testing::TestWithParam<Variable> {};

TEST_P(FlightVariables, ThatMakeNoSenseAreNamed) {
  ::setenv(GetParam().name, GetParam().value, 1);
  EXPECT_THAT(message_of<InvalidArgument>([] { FlightRecorderOptions::from_environment(); }),
              AllOf(HasSubstr(GetParam().name), HasSubstr(str("'", GetParam().value, "'"))));
  ::unsetenv(GetParam().name);
}

INSTANTIATE_TEST_SUITE_P(All, FlightVariables,
                         testing::Values(Variable{"COHORT_FLIGHT_RECORDER_SIZE", "many"},
                                         Variable{"COHORT_FLIGHT_RECORDER_SIZE", "-1"},
                                         Variable{"COHORT_FLIGHT_RECORDER_SIZE", "12x"},
                                         Variable{"COHORT_FLIGHT_RECORDER_SIZE", "1000001"},
                                         Variable{"COHORT_CHECK_SIGNATURES", "yes"}),
                         [](const auto& info) { return str("Case", info.index); });

TEST(FlightOptions, AreReadFromTheEnvironment) {
  ::setenv("COHORT_FLIGHT_RECORDER_SIZE", "0", 1);
  ::setenv("COHORT_TRACE_DIR", "/some/where", 1);
  ::setenv("COHORT_CHECK_SIGNATURES", "0", 1);
  const FlightRecorderOptions options = FlightRecorderOptions::from_environment();
  for (const char* name :
       {"COHORT_FLIGHT_RECORDER_SIZE", "COHORT_TRACE_DIR", "COHORT_CHECK_SIGNATURES"}) {
    ::unsetenv(name);
  }
  EXPECT_EQ(options.size, 0);
  EXPECT_EQ(options.trace_dir, "/some/where");
  EXPECT_FALSE(options.check_signatures);
  EXPECT_EQ(FlightRecorderOptions::from_environment().size, 1024);
}

// The disposition of SIGUSR1, put back at the end of a test.
class Disposition {
 public:
  explicit Disposition(void (*handler)(int)) {
    struct sigaction action {};
    action.sa_handler = handler;
    ::sigaction(SIGUSR1, &action, &before_);
  }
  ~Disposition() { ::sigaction(SIGUSR1, &before_, nullptr); }
  static void (*current())(int) {
    struct sigaction action {};
    ::sigaction(SIGUSR1, nullptr, &action);
    return action.sa_handler;
  }

 private:
  struct sigaction before_ {};
};

void users_handler(int) {}

TEST(DumpSignal, CallsItsFunctionForASignalAndLeavesNothingBehind) {
  const Disposition standard(SIG_DFL);
  std::atomic<int> calls{0};
  {
    const comm::DumpSignal signal([&] { ++calls; });
    ASSERT_TRUE(signal.installed());
    for (int i = 1; i <= 3; ++i) {
      ::raise(SIGUSR1);
      EXPECT_TRUE(eventually([&] { return calls == i; }, Milliseconds(10'000)));
    }
    const comm::DumpSignal second([] {});
    EXPECT_FALSE(second.installed());
  }
  EXPECT_EQ(Disposition::current(), SIG_DFL);
}

TEST(DumpSignal, LeavesAProgramsOwnHandlerAndAnIgnoredSignalAlone) {
  for (const auto handler : {&users_handler, SIG_IGN}) {
    const Disposition own(handler);
    const comm::DumpSignal signal([] {});
    EXPECT_FALSE(signal.installed());
    EXPECT_EQ(Disposition::current(), handler);
  }
}

TEST(DumpSignal, GivesWayToAHandlerThatComesLater) {
  const Disposition standard(SIG_DFL);
  {
    const comm::DumpSignal signal([] {});
    ::signal(SIGUSR1, users_handler);
  }
  EXPECT_EQ(Disposition::current(), &users_handler);
}

}  // namespace
}  // namespace cohort::test
