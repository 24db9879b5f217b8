// Ranks that are processes: they find each other, and survive the death, the stop, the error and
// the confusion of one of them as the list of faults demands (its rows are named at the tests).

#include <gmock/gmock.h>

#include <csignal>
#include <optional>
#include <string>

#include "cohort/comm/init.h"
#include "cohort/core/error.h"
#include "comm/worlds.h"
#include "support/rank_job.h"

namespace cohort::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr Milliseconds kPromptly = RankJob::kPromptly;
constexpr Milliseconds kStart = RankJob::kStart;

class Job : public RankJob {
 public:
  Job(int size, const std::string& mode, Over over, Milliseconds timeout = Milliseconds(60'000))
      : RankJob(size, {COHORT_TEST_BIN "/comm_child", mode, std::to_string(timeout.count()),
                       name(over)}) {}
};

class OverBackends : public testing::TestWithParam<Over> {};
class Processes : public OverBackends {};
class KilledWhile : public OverBackends {};
class Stopped : public OverBackends {};
class Throwing : public OverBackends {};
class LittleMemory : public OverBackends {};
class LeavingProcess : public OverBackends {};
class DeadJob : public OverBackends {};

std::vector<Over> backends() {
  return is_built(Over::gloo) ? std::vector{Over::shm, Over::gloo} : std::vector{Over::shm};
}
std::string backend_name(const testing::TestParamInfo<Over>& info) {
  return name(info.param);
}
INSTANTIATE_TEST_SUITE_P(Over, Processes, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Over, KilledWhile, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Over, Stopped, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Over, Throwing, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Over, LittleMemory, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Over, LeavingProcess, testing::ValuesIn(backends()), backend_name);
INSTANTIATE_TEST_SUITE_P(Over, DeadJob, testing::ValuesIn(backends()), backend_name);

TEST_P(Processes, FindEachOtherAndShareMemory) {
  Job job(3, "once", GetParam());
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    EXPECT_EQ(job.code(rank, kStart), 0) << job[rank].err();
    EXPECT_THAT(job[rank].out(), HasSubstr(str("rank ", rank, " of 3 backend ", name(GetParam()),
                                               " sum 6 subsequence ", rank + 1)));
  }
}

// Row 1.
class Killed : public testing::TestWithParam<std::tuple<Over, const char*>> {};

TEST_P(Killed, RankIsNamedByAllOthersWithinSeconds) {
  Job job(3, std::get<const char*>(GetParam()), std::get<Over>(GetParam()));
  job.wait_until_running();
  job[1].signal(SIGKILL);
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_EQ(job.code(rank), comm::kExitPeer) << job[rank].err();
    EXPECT_THAT(job[rank].err(), HasSubstr("rank 1 died"));
  }
}

INSTANTIATE_TEST_SUITE_P(While, Killed,
                         testing::Combine(testing::ValuesIn(backends()),
                                          testing::Values("symmetric", "ordinary",
                                                          "reduce_scatter")),
                         [](const auto& info) {
                           return str(name(std::get<Over>(info.param)), "_",
                                      std::get<const char*>(info.param));
                         });

// Over TCP nothing tells such a rank from one that computes; there the deadline ends it.
TEST(Killed, IsNoticedOnOneHostAlsoWhenAChildOfTheRankKeepsItsSocketsOpen) {
  Job job(2, "fork", Over::shm);
  job.wait_until_running();
  job[1].signal(SIGKILL);
  EXPECT_EQ(job[0].wait(kPromptly), comm::kExitPeer);
}

TEST_P(KilledWhile, AnotherRankComputesIsStillNamed) {
  Job job(3, "wait", GetParam());
  job.wait_until_running();
  // Rank 0 waits for rank 1, which does nothing; the dead one is rank 2.
  job[2].signal(SIGKILL);
  EXPECT_EQ(job.code(0), comm::kExitPeer);
  EXPECT_THAT(job[0].err(), HasSubstr("rank 2 died"));
}

// Row 2.
TEST_P(Stopped, ForAWhileIsTolerated) {
  Job job(2, "symmetric", GetParam());
  job.wait_until_running();
  job[1].signal(SIGSTOP);
  EXPECT_EQ(job[0].wait(Milliseconds(3'000)), std::nullopt);
  job[1].signal(SIGCONT);
  EXPECT_EQ(job[0].wait(Milliseconds(500)), std::nullopt);
  EXPECT_EQ(job[1].wait(Milliseconds(1)), std::nullopt);
}

TEST_P(Stopped, ForEverMissesTheDeadlineAndIsNamedAndSeesItWhenItResumes) {
  Job job(2, "symmetric", GetParam(), Milliseconds(2'000));
  job.wait_until_running();
  job[1].signal(SIGSTOP);
  EXPECT_EQ(job.code(0, Milliseconds(8'000)), comm::kExitTimeout);
  EXPECT_THAT(job[0].err(), AllOf(HasSubstr("rank 1 was missing after 2000 ms"),
                                  HasSubstr("all_reduce(mean) of 4194304 f32")));
  job[1].signal(SIGCONT);
  EXPECT_EQ(job.code(1), comm::kExitTimeout);
  EXPECT_THAT(job[1].err(), HasSubstr("rank 1 was missing after 2000 ms"));
}

// Rows 3 and 4.
struct Confusion {
  const char* mode;
  int code;
  const char* says;
};
class Confused : public testing::TestWithParam<std::tuple<Over, Confusion>> {};

TEST_P(Confused, RanksAllEndNamingWhoDidWhat) {
  const auto& [over, confusion] = GetParam();
  Job job(2, confusion.mode, over);
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    const auto code = job.code(rank, kStart);
    // The rank that issued too little has nothing to wait for, and may end well.
    if (rank == 0 && std::string(confusion.mode) == "extra") {
      EXPECT_EQ(code, 0);
      continue;
    }
    EXPECT_EQ(code, confusion.code) << job[rank].err();
    EXPECT_THAT(job[rank].err(), HasSubstr(confusion.says));
  }
}

INSTANTIATE_TEST_SUITE_P(
    By, Confused,
    testing::Combine(
        testing::ValuesIn(backends()),
        testing::Values(
            Confusion{
                "skip", comm::kExitMismatch,
                "rank 0 called all_reduce(sum) of 10 f32; rank 1 called all_reduce(sum) of 20"},
            Confusion{"extra", comm::kExitPeer, "rank 0 left the group"},
            Confusion{"numel", comm::kExitMismatch, "rank 1 called all_reduce(sum) of 11 f32"},
            Confusion{"dtype", comm::kExitMismatch, "rank 1 called all_reduce(sum) of 10 f64"},
            Confusion{"crossed", comm::kExitMismatch, "two groups in different orders"})),
    [](const auto& info) {
      return str(name(std::get<Over>(info.param)), "_", std::get<Confusion>(info.param).mode);
    });

// Row 5, the loader's half.
TEST_P(Throwing, RankTellsTheOthersItsText) {
  Job job(3, "throw", GetParam());
  EXPECT_EQ(job.code(1, kStart), comm::kExitError);
  EXPECT_THAT(job[1].err(), HasSubstr("[rank 1] error: the loader of rank 1 is empty"));
  for (const std::size_t rank : {0u, 2u}) {
    EXPECT_EQ(job.code(rank), comm::kExitPeer);
    EXPECT_THAT(job[rank].err(), HasSubstr("rank 1 failed: the loader of rank 1 is empty"));
  }
}

// Row 10.
TEST_P(LittleMemory, OnOneRankIsAnErrorOnAllAndTheGroupGoesOn) {
  Job job(2, "memory", GetParam());
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    EXPECT_EQ(job.code(rank, kStart), 0) << job[rank].err();
    EXPECT_THAT(job[rank].out(),
                AllOf(HasSubstr("refused: [allocate]"), HasSubstr("rank 1"), HasSubstr("sum 2")));
  }
}

// Row 18, seen from the peers.
TEST_P(LeavingProcess, EarlyWithExitZeroIsAnErrorForTheOthers) {
  Job job(2, "leave", GetParam());
  EXPECT_EQ(job.code(1, kStart), 0);
  EXPECT_EQ(job.code(0), comm::kExitPeer);
  EXPECT_THAT(job[0].err(), HasSubstr("rank 1 left the group"));
}

// Row 14. What is left after a job that died at once is nothing; the destructor of Job looks.
TEST_P(DeadJob, LeavesNoSegmentAndNoSocket) {
  Job job(2, "symmetric", GetParam());
  job.wait_until_running();
  job[0].signal(SIGKILL);
  job[1].signal(SIGKILL);
  EXPECT_EQ(job.code(0), -SIGKILL);
  EXPECT_EQ(job.code(1), -SIGKILL);
}

}  // namespace
}  // namespace cohort::test
