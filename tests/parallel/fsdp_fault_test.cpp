// A rank that dies in the middle of FSDP's backward, with reductions and prefetched gathers under
// way: every other rank ends with an error that names it and the operation, in time.

#include <gmock/gmock.h>

#include <csignal>

#include "cohort/comm/init.h"
#include "cohort/core/error.h"
#include "comm/worlds.h"
#include "support/rank_job.h"

namespace cohort::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

class FsdpFault : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(Over, FsdpFault, testing::Values("shm", "gloo"),
                         [](const auto& info) { return std::string(info.param); });

TEST_P(FsdpFault, ARankKilledInBackwardIsNamedByAllOthersInTime) {
  const std::string backend = GetParam();
  if (backend == "gloo" && !is_built(Over::gloo)) GTEST_SKIP() << "built without Gloo";
  constexpr int kWorld = 3;
  // The gradients of the last layer come first: at those of the others, reductions are under way.
  for (const int parameter : {4, 0}) {
    const int victim = parameter == 4 ? 1 : 2;
    RankJob job(kWorld, {COHORT_TEST_BIN "/fsdp_child", std::to_string(victim), "3",
                         std::to_string(parameter), "60000", backend});
    job.wait_until_running();
    for (int rank = 0; rank < kWorld; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      if (rank == victim) {
        EXPECT_EQ(job.code(at), -SIGKILL) << job[at].err();
        continue;
      }
      EXPECT_EQ(job.code(at), comm::kExitPeer) << job[at].err();
      EXPECT_THAT(job[at].err(), HasSubstr(str("rank ", victim)));
      EXPECT_THAT(job[at].err(), AnyOf(HasSubstr("[reduce_scatter]"), HasSubstr("[all_gather]"),
                                       HasSubstr("[all_reduce]"), HasSubstr("[allocate]")));
    }
  }
}

}  // namespace
}  // namespace cohort::test
