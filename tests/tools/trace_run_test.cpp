// From `cohort run --trace-dir` to `cohort trace desync`: real ranks that part, and what is said.

#include <gmock/gmock.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cohort/core/error.h"
#include "support/child_process.h"

namespace cohort::tools {
namespace {

namespace fs = std::filesystem;
using test::ChildProcess;
using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr Milliseconds kSoon{60'000};
const std::string kCohort = COHORT_TEST_BIN "/cohort";
const std::string kRanks = COHORT_TEST_BIN "/comm_child";

class TracedJob {
 public:
  explicit TracedJob(const std::string& mode, int ranks = 3)
      : job_({kCohort, "run", "-n", std::to_string(ranks), "--grace", "4", "--trace-dir", folder_,
              kRanks, mode}) {}
  ~TracedJob() { fs::remove_all(folder_); }

  ChildProcess& process() { return job_; }
  int wait() { return job_.wait(kSoon).value_or(-1000); }
  fs::path file(int rank) const { return folder_ / str("flight-rank", rank, ".json"); }
  const fs::path& folder() const { return folder_; }

  // Exit code and both outputs of `cohort trace desync`.
  std::pair<int, std::string> desync() const {
    ChildProcess tool({kCohort, "trace", "desync", folder_});
    const int code = tool.wait(kSoon).value_or(-1000);
    tool.wait_for_end_of_output(kSoon);
    return {code, tool.out() + tool.err()};
  }

 private:
  const fs::path folder_ = fs::temp_directory_path() / str("cohort-traced-", ::getpid());
  ChildProcess job_;
};

struct Parting {
  const char* mode;
  const char* says;
};
class Traced : public testing::TestWithParam<Parting> {};

TEST_P(Traced, JobSaysWhoParted) {
  TracedJob job(GetParam().mode);
  EXPECT_NE(job.wait(), 0);
  const auto [code, sentence] = job.desync();
  EXPECT_EQ(code, 3) << sentence;
  EXPECT_THAT(sentence, HasSubstr(GetParam().says));
}

// All groups begin with the barrier of init_from_env().
INSTANTIATE_TEST_SUITE_P(
    Job, Traced,
    testing::Values(
        Parting{"skip",
                "rank 1 called all_reduce(sum) of 20 f32 as its 2nd collective of group 'world', "
                "where ranks 0 and 2 called all_reduce(sum) of 10 f32"},
        Parting{
            "extra",
            "rank 1 called all_reduce(sum) of 20 f32 as its 3rd collective of group 'world', "
            "to which ranks 0 and 2 have not come; rank 0's last was all_reduce(sum) of 10 f32"},
        Parting{"numel", "rank 1 called all_reduce(sum) of 11 f32 as its 2nd"},
        Parting{"dtype", "rank 1 called all_reduce(sum) of 10 f64 as its 2nd"},
        Parting{"order", "rank 1 called all_reduce(sum) of 20 f32 as its 2nd"},
        Parting{"die",
                "there is no dump of rank 1, for which ranks 0 and 2 wait in all_reduce(sum) of 20 "
                "f32, the 3rd collective of group 'world'"}),
    [](const auto& info) { return std::string(info.param.mode); });

TEST(TracedJob, SeesGroupsThatAreUsedInDifferentOrders) {
  TracedJob job("crossed", 2);
  EXPECT_NE(job.wait(), 0);
  const auto [code, sentence] = job.desync();
  EXPECT_EQ(code, 3) << sentence;
  EXPECT_THAT(sentence,
              AllOf(StartsWith("the ranks use group 'a' and group 'b' in different orders"),
                    HasSubstr("rank 0 is in all_reduce(sum) of 100 f32, its 1st collective of "
                              "group 'a'")));
}

TEST(TracedJob, ThatEndsWellHasNoDesyncAndReplacesAnEarlierJobsDumps) {
  const fs::path folder = fs::temp_directory_path() / str("cohort-traced-", ::getpid());
  fs::create_directories(folder);
  std::ofstream(folder / "flight-rank0.json") << "old";
  std::ofstream(folder / "flight-rank7.json") << "of a larger job";
  TracedJob job("once", 2);
  EXPECT_EQ(job.wait(), 0) << job.process().err();
  EXPECT_FALSE(fs::exists(job.file(7)));
  const auto [code, sentence] = job.desync();
  EXPECT_EQ(code, 0);
  EXPECT_THAT(sentence, StartsWith("no desync: ranks 0 and 1 called the same collectives"));
}

TEST(TracedJob, ShowsWhereItsRanksAreOnSigusr1AndGoesOn) {
  TracedJob job("symmetric", 2);
  ASSERT_TRUE(job.process().wait_for("[0] running", kSoon));
  ASSERT_TRUE(job.process().wait_for("[1] running", kSoon));
  for (int rank = 0; rank < 2; ++rank) EXPECT_FALSE(fs::exists(job.file(rank)));
  job.process().signal(SIGUSR1);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_TRUE(test::eventually([&] { return fs::exists(job.file(rank)); }, kSoon));
  }
  EXPECT_EQ(job.process().wait(Milliseconds(200)), std::nullopt) << "it must go on";
  job.process().signal(SIGTERM);
  EXPECT_EQ(job.wait(), 128 + SIGTERM);
  job.process().wait_for_end_of_output(kSoon);
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(job.process().err(),
                HasSubstr(str("[", rank, "] [rank ", rank, "] group 'world' (shm, rank ", rank,
                              " of 2): ")));
  }
}

TEST(TracedJob, WithAFolderThatCannotBeMadeIsAnErrorOfTheLauncher) {
  ChildProcess process({kCohort, "run", "--trace-dir", "/proc/none", "true"});
  EXPECT_EQ(process.wait(kSoon), 1);
  process.wait_for_end_of_output(kSoon);
  EXPECT_THAT(process.err(), HasSubstr("--trace-dir: cannot create /proc/none"));
}

}  // namespace
}  // namespace cohort::tools
