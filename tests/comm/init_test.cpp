#include "cohort/comm/init.h"

#include <gmock/gmock.h>

#include <map>
#include <string>

#include "cohort/core/error.h"
#include "comm/collective_values.h"

namespace cohort::test {
namespace {

using comm::init_from_env;
using comm::LaunchEnv;
using comm::run_main;

LaunchEnv::Environment variables(std::map<std::string, std::string> values) {
  return [values = std::move(values)](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    if (found == values.end()) return std::nullopt;
    return found->second;
  };
}

// A context of its own, so that the process's runtime keeps its rank.
struct OwnRuntime {
  std::shared_ptr<Runtime> runtime = Runtime::make();
  Context context{runtime};
  ContextScope scope{context};
};

TEST(InitFromEnv, MakesAWorldOfOneWithoutVariables) {
  const OwnRuntime own;
  const auto group = init_from_env({.environment = variables({})});
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->backend(), "self");
}

TEST(InitFromEnv, RefusesAnUnknownBackendAndHalfSetVariables) {
  const OwnRuntime own;
  EXPECT_THROW(init_from_env({.backend = "pigeon", .environment = variables({})}),
               InvalidArgument);
  EXPECT_THROW(init_from_env({.environment = variables({{"RANK", "1"}})}), InvalidArgument);
}

TEST(RunMain, ReturnsTheProgramsOwnCode) {
  EXPECT_EQ(run_main(0, nullptr, [](int, char**) { return 3; }), 3);
}

TEST(RunMain, TurnsEachKindOfErrorIntoItsCode) {
  const auto code = [](auto error) {
    return run_main(0, nullptr, [&](int, char**) -> int { throw error; });
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(code(InvalidArgument("a")), comm::kExitInvalidArgument);
  EXPECT_EQ(code(std::runtime_error("b")), comm::kExitError);
  EXPECT_EQ(code(7), comm::kExitError);
  EXPECT_EQ(code(PeerError("c", 1)), comm::kExitPeer);
  EXPECT_EQ(code(TimeoutError("d")), comm::kExitTimeout);
  EXPECT_EQ(code(MismatchError("e")), comm::kExitMismatch);
  EXPECT_EQ(code(OutOfMemory("f")), comm::kExitOutOfMemory);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), testing::HasSubstr("[rank 0] error: b\n"));
}

TEST(ReseedForRank, GivesRanksDifferentDropoutAndEqualInitialisation) {
  const OwnRuntime own;
  manual_seed(5);
  const PhiloxState zero = Context::current().generator.state();
  own.runtime->set_rank(3);
  reseed_for_rank();
  EXPECT_EQ(Context::current().generator.state().seed, zero.seed);
  EXPECT_NE(Context::current().generator.state().subsequence, zero.subsequence);
  EXPECT_EQ(Context::current().init_generator.state().subsequence, 0u);
}

}  // namespace
}  // namespace cohort::test
