// What one process among three does wrong, and what the others and the launcher say of it.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

#include "support/child_process.h"

namespace cohort {
namespace {

struct Fault {
  const char* name;
  int exit_code;                        // of the launcher: the culprit's
  std::vector<std::string> everywhere;  // what standard error says for each of the three ranks
};

void PrintTo(const Fault& fault, std::ostream* out) {
  *out << fault.name;
}

class DdpProcessFaults : public testing::TestWithParam<Fault> {};

INSTANTIATE_TEST_SUITE_P(
    All, DdpProcessFaults,
    testing::Values(
        // 73: MismatchError on every rank.
        Fault{"model", 73, {"models differ between ranks", "first.weight", "[7, 4]", "[300, 4]"}},
        Fault{"loader", 70, {"batch 2 is missing"}},
        Fault{"frozen", 70, {"'second.weight' has been frozen"}},
        // 74: OutOfMemory on every rank.
        Fault{"memory", 74, {"the limit of 2000 bytes"}}),
    [](const auto& info) { return std::string(info.param.name); });

TEST_P(DdpProcessFaults, AreRaisedOnEveryRankWithinTenSeconds) {
  const Fault& fault = GetParam();
  const auto begun = std::chrono::steady_clock::now();
  test::ChildProcess job(
      {COHORT_TEST_BIN "/cohort", "run", "-n", "3", COHORT_TEST_BIN "/ddp_child", fault.name});
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), fault.exit_code) << job.out() << job.err();
  ASSERT_TRUE(job.wait_for_end_of_output(std::chrono::seconds(10)));
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
  for (const char* rank : {"[rank 0] error:", "[rank 1] error:", "[rank 2] error:"}) {
    const std::size_t at = job.err().find(rank);
    ASSERT_NE(at, std::string::npos) << rank << job.err();
    const std::string line = job.err().substr(at, job.err().find('\n', at) - at);
    for (const std::string& text : fault.everywhere) {
      EXPECT_NE(line.find(text), std::string::npos) << text << " in: " << line;
    }
  }
}

TEST(DdpProcesses, AnUnusedParameterVoidsTheStepAndTheJobGoesOn) {
  test::ChildProcess job(
      {COHORT_TEST_BIN "/cohort", "run", "-n", "3", COHORT_TEST_BIN "/ddp_child", "unused"});
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), 0) << job.out() << job.err();
  ASSERT_TRUE(job.wait_for_end_of_output(std::chrono::seconds(10)));
  EXPECT_NE(job.out().find("rank 1 goes on after its own"), std::string::npos) << job.out();
  for (const char* rank : {"rank 0", "rank 2"}) {
    EXPECT_NE(job.out().find(std::string(rank) + " goes on after: [DDP] rank 1 failed"),
              std::string::npos)
        << job.out();
    EXPECT_NE(job.out().find(std::string(rank) + " done"), std::string::npos) << job.out();
  }
}

TEST(DdpProcesses, ARankThatReturnsEarlyIsNamedByTheOthers) {
  test::ChildProcess job(
      {COHORT_TEST_BIN "/cohort", "run", "-n", "3", COHORT_TEST_BIN "/ddp_child", "early"});
  EXPECT_EQ(job.wait(std::chrono::seconds(30)), 71) << job.out() << job.err();
  ASSERT_TRUE(job.wait_for_end_of_output(std::chrono::seconds(10)));
  for (const char* rank : {"[rank 0] error:", "[rank 2] error:"}) {
    const std::size_t at = job.err().find(rank);
    ASSERT_NE(at, std::string::npos) << rank << job.err();
    EXPECT_NE(job.err().find("rank 1", at), std::string::npos) << job.err();
  }
}

}  // namespace
}  // namespace cohort
