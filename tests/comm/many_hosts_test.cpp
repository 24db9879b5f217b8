// Two hosts of two ranks each. The hosts are network namespaces; where those are not permitted, the
// tests are skipped and say so.

#include <gmock/gmock.h>

#include <csignal>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/init.h"
#include "comm/worlds.h"
#include "support/child_process.h"
#include "support/two_hosts.h"

namespace cohort::test {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

constexpr Milliseconds kStart{40'000};
constexpr Milliseconds kPromptly{5'000};

class ManyHosts : public testing::Test {
 protected:
  void SetUp() override {
    if (!is_built(Over::gloo)) GTEST_SKIP() << "this build has no Gloo";
    std::string refusal;
    hosts_ = TwoHosts::make(refusal);
    if (!hosts_)
      GTEST_SKIP() << "no network namespaces here (needs root and iproute2): " << refusal;
  }
  void TearDown() override {
    ranks_.clear();
    if (!hosts_) return;
    for (const int host : {0, 1}) {
      EXPECT_TRUE(eventually([&] { return hosts_->processes(host).empty(); }, kPromptly))
          << "left behind on host " << host << ": " << hosts_->processes(host);
    }
  }

  // Ranks of comm_child, `each` on either host; rank 0 hosts the store.
  void start(int each, const std::string& mode, Milliseconds timeout,
             const std::string& backend = "auto") {
    for (int rank = 0; rank < 2 * each; ++rank) {
      const int host = rank / each;
      ranks_.push_back(std::make_unique<ChildProcess>(
          hosts_->on(host, {COHORT_TEST_BIN "/comm_child", mode, std::to_string(timeout.count()),
                            backend}),
          std::vector<std::string>{
              "RANK=" + std::to_string(rank), "WORLD_SIZE=" + std::to_string(2 * each),
              "LOCAL_RANK=" + std::to_string(rank % each),
              "LOCAL_WORLD_SIZE=" + std::to_string(each), "GROUP_RANK=" + std::to_string(host),
              "MASTER_ADDR=" + hosts_->address(0), "MASTER_PORT=29400",
              "TORCHELASTIC_RUN_ID=many-hosts", "COHORT_JOB_SECRET=secret"}));
    }
  }
  void wait_until_running() {
    for (const auto& rank : ranks_) {
      ASSERT_TRUE(rank->wait_for("running", kStart)) << rank->out() << rank->err();
    }
  }
  std::optional<int> code(std::size_t rank, Milliseconds timeout) {
    const auto code = ranks_[rank]->wait(timeout);
    ranks_[rank]->wait_for_end_of_output(Milliseconds(1'000));
    return code;
  }

  std::unique_ptr<TwoHosts> hosts_;
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

TEST_F(ManyHosts, ShareMemoryInsideEachAndGlooBetweenThem) {
  start(2, "once", kStart);
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(code(rank, kStart), 0) << ranks_[rank]->err();
    EXPECT_THAT(ranks_[rank]->out(),
                HasSubstr(str("rank ", rank, " of 4 backend hierarchical sum 10")));
  }
}

TEST_F(ManyHosts, UseGlooAloneWhereEachHasOneRank) {
  start(1, "once", kStart);
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(code(rank, kStart), 0) << ranks_[rank]->err();
    EXPECT_THAT(ranks_[rank]->out(), HasSubstr(str("rank ", rank, " of 2 backend gloo sum 3")));
  }
}

TEST_F(ManyHosts, AreRefusedByRanksThatInsistOnSharedMemory) {
  start(1, "once", kStart, "shm");
  for (std::size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQ(code(rank, kStart), comm::kExitError);
    EXPECT_THAT(ranks_[rank]->err(), HasSubstr("rank 1 does not share a host with rank 0"));
  }
}

// As the tutorial of docs/many_hosts.md does it.
TEST_F(ManyHosts, AreStartedByOneLauncherEach) {
  for (const int host : {0, 1}) {
    ranks_.push_back(std::make_unique<ChildProcess>(
        hosts_->on(host, {COHORT_TEST_BIN "/cohort", "run", "-n", "2", "--nnodes", "2",
                          "--node-rank", std::to_string(host), "--master-addr", hosts_->address(0),
                          "--master-port", "29400", COHORT_TEST_BIN "/comm_child", "once"}),
        std::vector<std::string>{"COHORT_JOB_SECRET=secret"}));
  }
  for (std::size_t host = 0; host < 2; ++host) {
    EXPECT_EQ(code(host, kStart), 0) << ranks_[host]->err();
    for (const std::size_t rank : {2 * host, 2 * host + 1}) {
      EXPECT_THAT(ranks_[host]->out(),
                  HasSubstr(str("rank ", rank, " of 4 backend hierarchical sum 10")));
    }
  }
}

class ManyHostsWhile : public ManyHosts, public testing::WithParamInterface<const char*> {};

TEST_P(ManyHostsWhile, ARankIsKilledAllNameItWithinSeconds) {
  start(2, GetParam(), Milliseconds(60'000));
  wait_until_running();
  ranks_[2]->signal(SIGKILL);
  for (const std::size_t rank : {0u, 1u, 3u}) {
    EXPECT_EQ(code(rank, kPromptly), comm::kExitPeer) << ranks_[rank]->err();
    EXPECT_THAT(ranks_[rank]->err(), HasSubstr("rank 2 died"));
  }
}

TEST_P(ManyHostsWhile, TheLinkIsCutAllEndWithinTheDeadlineNamingRanksAndOperation) {
  start(2, GetParam(), Milliseconds(3'000));
  wait_until_running();
  hosts_->cut_link();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(code(rank, Milliseconds(9'000)), comm::kExitTimeout) << ranks_[rank]->err();
    EXPECT_THAT(ranks_[rank]->err(),
                AllOf(HasSubstr(rank < 2 ? "ranks 2, 3 were missing" : "ranks 0, 1 were missing"),
                      HasSubstr("after 3000 ms of"), HasSubstr("does not answer"),
                      AnyOf(HasSubstr("all_reduce(mean) of 4194304 f32"),
                            HasSubstr("reduce_scatter(sum)"), HasSubstr("all_gather of"))));
  }
}

INSTANTIATE_TEST_SUITE_P(Mode, ManyHostsWhile,
                         testing::Values("symmetric", "ordinary", "reduce_scatter"),
                         [](const auto& info) { return std::string(info.param); });

TEST_F(ManyHosts, FlatGlooSurvivesACutLinkTheSameWay) {
  start(2, "ordinary", Milliseconds(3'000), "gloo");
  wait_until_running();
  hosts_->cut_link();
  for (std::size_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(code(rank, Milliseconds(9'000)), comm::kExitTimeout) << ranks_[rank]->err();
    EXPECT_THAT(ranks_[rank]->err(),
                HasSubstr(rank < 2 ? "ranks 2, 3 were missing" : "ranks 0, 1 were missing"));
  }
}

}  // namespace
}  // namespace cohort::test
