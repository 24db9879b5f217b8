// What docs/why_shard.md shows: under a limit of memory that replicas do not fit into, shards do.

#include <gmock/gmock.h>

#include <filesystem>

#include "cohort/comm/init.h"
#include "support/child_process.h"

namespace cohort::test {
namespace {

using testing::HasSubstr;

constexpr const char* kData = "/usr/share/datasets/fashion-mnist";

// 5 million parameters, 16 bytes of each, beside 55 MB of images.
class Training : public ChildProcess {
 public:
  explicit Training(const std::string& strategy)
      : ChildProcess({COHORT_TEST_BIN "/cohort", "run", "-n", "2",
                      COHORT_TEST_BIN "/train_fashion_mnist", "--widths",
                      "784-1024-1024-1024-1024-1024-10", "--epochs", "1", "--steps", "2",
                      "--strategy", strategy, "--memory-limit", "120000000"}) {}

  int code() {
    const int code = wait(std::chrono::seconds(60)).value_or(-1000);
    wait_for_end_of_output(std::chrono::seconds(10));
    return code;
  }
};

TEST(WhyShard, ReplicasThatDoNotFitSayWhatHoldsTheMemoryAndShardsTrain) {
  for (const char* needed : {kData, COHORT_TEST_BIN "/train_fashion_mnist"}) {
    if (!std::filesystem::exists(needed)) GTEST_SKIP() << "there is no " << needed;
  }
  Training replicas("ddp");
  EXPECT_EQ(replicas.code(), comm::kExitOutOfMemory) << replicas.err();
  for (const char* text : {"do not fit into the limit of 120000000 bytes", "parameters: 2",
                           "gradients: 2", "optimizer: ", "other: 5"}) {
    EXPECT_THAT(replicas.err(), HasSubstr(text));
  }
  Training shards("full_shard");
  EXPECT_EQ(shards.code(), 0) << shards.err();
  EXPECT_THAT(shards.out(), HasSubstr("epoch 1/1"));
}

// Every strategy of the example, from the launcher: the plan, then the epoch's line.
class Strategies : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Example, Strategies,
                         testing::Values("ddp", "no_shard", "shard_grad_op", "full_shard",
                                         "hybrid"));

TEST_P(Strategies, PrintThePlanAndWhatAnEpochCommunicatedAndHeld) {
  for (const char* needed : {kData, COHORT_TEST_BIN "/train_fashion_mnist"}) {
    if (!std::filesystem::exists(needed)) GTEST_SKIP() << "there is no " << needed;
  }
  ChildProcess job({COHORT_TEST_BIN "/cohort", "run", "-n", "2",
                    COHORT_TEST_BIN "/train_fashion_mnist", "--widths", "784-64-10", "--epochs",
                    "1", "--steps", "3", "--plan", "--strategy", GetParam()});
  EXPECT_EQ(job.wait(std::chrono::seconds(60)).value_or(-1000), 0) << job.err();
  job.wait_for_end_of_output(std::chrono::seconds(10));
  for (const char* text : {"epoch 1/1", "% of the epoch", "peak memory"}) {
    EXPECT_THAT(job.out(), HasSubstr(text));
  }
  const bool sharded = std::string(GetParam()) != "ddp";
  EXPECT_THAT(job.out(), HasSubstr(sharded ? "FSDP plan of one of 2 ranks" : "bucket"));
}

}  // namespace
}  // namespace cohort::test
