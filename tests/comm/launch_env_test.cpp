#include "cohort/comm/launch_env.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

using Map = std::map<std::string, std::string>;

LaunchEnv parse(const Map& map) {
  return LaunchEnv::from_environment([&](const std::string& name) {
    const auto found = map.find(name);
    return found == map.end() ? std::nullopt : std::optional(found->second);
  });
}

const Map kTorchrun{{"RANK", "5"},
                    {"WORLD_SIZE", "8"},
                    {"LOCAL_RANK", "1"},
                    {"LOCAL_WORLD_SIZE", "4"},
                    {"GROUP_RANK", "1"},
                    {"MASTER_ADDR", "node0"},
                    {"MASTER_PORT", "29500"},
                    {"TORCHELASTIC_RUN_ID", "run7"}};

const Map kOpenMpi{{"OMPI_COMM_WORLD_RANK", "1"},
                   {"OMPI_COMM_WORLD_SIZE", "2"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"},
                   {"PMIX_NAMESPACE", "prterun-host-77@1"}};

const Map kSlurm{{"SLURM_PROCID", "6"},
                 {"SLURM_NTASKS", "99"},
                 {"SLURM_LOCALID", "2"},
                 {"SLURM_NODEID", "1"},
                 {"SLURM_JOB_ID", "1234"},
                 {"SLURM_STEP_ID", "2"},
                 {"SLURM_STEP_NUM_TASKS", "11"},
                 {"SLURM_STEP_NODELIST", "gpu[07-09]"},
                 {"SLURM_STEP_TASKS_PER_NODE", "4(x2),3"}};

Map with(Map map, const Map& more) {
  for (const auto& [name, value] : more) map[name] = value;
  return map;
}

Map without(Map map, const std::string& name) {
  map.erase(name);
  return map;
}

TEST(LaunchEnv, NothingSetIsAWorldOfOne) {
  const LaunchEnv env = parse({{"MASTER_ADDR", "left over"},
                               {"SLURM_PROCID", "0"},
                               {"SLURM_NTASKS", "4"},
                               {"MASTER_PORT", "no number"}});
  EXPECT_EQ(env.launcher, Launcher::alone);
  EXPECT_EQ(env.rank, 0);
  EXPECT_EQ(env.world_size, 1);
  EXPECT_FALSE(env.store_hosted);
}

TEST(LaunchEnv, UnderstandsTorchrun) {
  const LaunchEnv env = parse(kTorchrun);
  EXPECT_EQ(env.launcher, Launcher::torchrun);
  EXPECT_EQ(env.rank, 5);
  EXPECT_EQ(env.world_size, 8);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.group_rank, 1);
  EXPECT_EQ(env.master_addr, "node0");
  EXPECT_EQ(env.master_port, 29500);
  EXPECT_EQ(env.job_id, "run7");
  EXPECT_EQ(env.secret, "");
}

TEST(LaunchEnv, KeepsClearOfThePortThatTorchrunsAgentHolds) {
  EXPECT_EQ(parse(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "True"}})).master_port, 29501);
  EXPECT_EQ(parse(with(kTorchrun, {{"TORCHELASTIC_USE_AGENT_STORE", "False"}})).master_port, 29500);
  EXPECT_EQ(parse(with(kTorchrun, {{"COHORT_STORE_PORT", "777"}})).master_port, 777);
}

TEST(LaunchEnv, ReadsWhatOurOwnLauncherAdds) {
  const LaunchEnv env = parse(with(kTorchrun, {{"COHORT_JOB_SECRET", "abc"},
                                               {"COHORT_STORE_HOSTED", "1"},
                                               {"COHORT_BIND_ADDR", "10.0.0.1"},
                                               {"TORCHELASTIC_RESTART_COUNT", "3"}}));
  EXPECT_EQ(env.secret, "abc");
  EXPECT_TRUE(env.store_hosted);
  EXPECT_EQ(env.bind_addr, "10.0.0.1");
  EXPECT_EQ(env.restart_count, 3);
}

TEST(LaunchEnv, FourVariablesSetByHandAreEnough) {
  const Map by_hand{{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "29500"}};
  const LaunchEnv one_host = parse(with(by_hand, {{"MASTER_ADDR", "localhost"}}));
  EXPECT_EQ(one_host.local_rank, 1);
  EXPECT_EQ(one_host.local_world_size, 2);
  EXPECT_EQ(one_host.group_rank, 0);
  const LaunchEnv two_hosts = parse(with(by_hand, {{"MASTER_ADDR", "node0"}}));
  EXPECT_EQ(two_hosts.local_rank, 0);
  EXPECT_EQ(two_hosts.local_world_size, 1);
  EXPECT_EQ(two_hosts.group_rank, 1);
}

TEST(LaunchEnv, UnderstandsOpenMpiOnOneHost) {
  const LaunchEnv env = parse(kOpenMpi);
  EXPECT_EQ(env.launcher, Launcher::open_mpi);
  EXPECT_EQ(env.rank, 1);
  EXPECT_EQ(env.world_size, 2);
  EXPECT_EQ(env.local_rank, 1);
  EXPECT_EQ(env.master_addr, "127.0.0.1");
  EXPECT_EQ(env.master_port, derived_port("mpirun-prterun-host-77@1"));
  EXPECT_EQ(env.job_id, "mpirun-prterun-host-77@1");
}

TEST(LaunchEnv, OpenMpiBetweenHostsNeedsTheMastersAddress) {
  const Map hosts = with(kOpenMpi, {{"OMPI_COMM_WORLD_SIZE", "4"}});
  EXPECT_THAT([&] { parse(hosts); }, ThrowsMessage<InvalidArgument>(HasSubstr("MASTER_ADDR")));
  const LaunchEnv env = parse(with(hosts, {{"MASTER_ADDR", "node0"}, {"MASTER_PORT", "4000"}}));
  EXPECT_EQ(env.master_addr, "node0");
  EXPECT_EQ(env.master_port, 4000);
}

TEST(LaunchEnv, UnderstandsPmi) {
  const LaunchEnv env = parse({{"PMI_RANK", "3"},
                               {"PMI_SIZE", "4"},
                               {"MPI_LOCALRANKID", "1"},
                               {"MPI_LOCALNRANKS", "2"},
                               {"MASTER_ADDR", "node0"}});
  EXPECT_EQ(env.launcher, Launcher::pmi);
  EXPECT_EQ(env.rank, 3);
  EXPECT_EQ(env.group_rank, 1);
  EXPECT_GE(env.master_port, 10000);
}

TEST(LaunchEnv, UnderstandsSrun) {
  const LaunchEnv env = parse(kSlurm);
  EXPECT_EQ(env.launcher, Launcher::slurm);
  EXPECT_EQ(env.rank, 6);
  EXPECT_EQ(env.world_size, 11);  // of the step, not of the job
  EXPECT_EQ(env.local_rank, 2);
  EXPECT_EQ(env.local_world_size, 4);
  EXPECT_EQ(env.group_rank, 1);
  EXPECT_EQ(env.master_addr, "gpu07");
  EXPECT_EQ(env.job_id, "slurm-1234.2");
  EXPECT_EQ(env.master_port, derived_port("slurm-1234.2"));
  EXPECT_EQ(parse(with(kSlurm, {{"SLURM_NODEID", "2"}})).local_world_size, 3);
}

TEST(LaunchEnv, TheFirstFamilyDecides) {
  const Map all = with(with(kTorchrun, kOpenMpi), kSlurm);
  EXPECT_EQ(parse(all).launcher, Launcher::torchrun);
  EXPECT_EQ(parse(with(kOpenMpi, kSlurm)).launcher, Launcher::open_mpi);
  EXPECT_EQ(parse(with(kSlurm, {{"PMI_RANK", "0"}, {"PMI_SIZE", "1"}})).launcher, Launcher::pmi);
}

struct Bad {
  const char* name;
  Map map;
  const char* variable;
  const char* value;  // that the message must show
};

class BadEnvironment : public testing::TestWithParam<Bad> {};

INSTANTIATE_TEST_SUITE_P(
    Each, BadEnvironment,
    testing::Values(
        Bad{"RankAlone", {{"RANK", "1"}}, "WORLD_SIZE", "'1'"},
        Bad{"WorldSizeAlone", {{"WORLD_SIZE", "2"}}, "RANK", "'2'"},
        Bad{"LocalRankAlone", {{"LOCAL_RANK", "0"}}, "RANK", "LOCAL_RANK"},
        Bad{"RankIsText", with(kTorchrun, {{"RANK", "one"}}), "RANK", "'one'"},
        Bad{"RankIsEmpty", with(kTorchrun, {{"RANK", ""}}), "RANK", "''"},
        Bad{"RankHasATail", with(kTorchrun, {{"RANK", "1x"}}), "RANK", "'1x'"},
        Bad{"RankTooLarge", with(kTorchrun, {{"RANK", "8"}}), "RANK", "8"},
        Bad{"RankNegative", with(kTorchrun, {{"RANK", "-1"}}), "RANK", "-1"},
        Bad{"WorldOfNone", with(kTorchrun, {{"WORLD_SIZE", "0"}}), "WORLD_SIZE", "0"},
        Bad{"WorldAbsurd", with(kTorchrun, {{"WORLD_SIZE", "2000000000"}}), "WORLD_SIZE",
            "2000000000"},
        Bad{"WorldOverflows", with(kTorchrun, {{"WORLD_SIZE", "99999999999"}}), "WORLD_SIZE",
            "99999999999"},
        Bad{"LocalRankTooLarge", with(kTorchrun, {{"LOCAL_RANK", "4"}}), "LOCAL_RANK", "4"},
        Bad{"LocalWorldLargerThanWorld", with(kTorchrun, {{"LOCAL_WORLD_SIZE", "9"}}),
            "LOCAL_WORLD_SIZE", "9"},
        Bad{"NoLocalWorldSize", without(kTorchrun, "LOCAL_WORLD_SIZE"), "LOCAL_WORLD_SIZE",
            "LOCAL_RANK"},
        Bad{"NoMasterAddress", without(kTorchrun, "MASTER_ADDR"), "MASTER_ADDR", "8 ranks"},
        Bad{"NoMasterPort", without(kTorchrun, "MASTER_PORT"), "MASTER_PORT", "8 ranks"},
        Bad{"PortZero", with(kTorchrun, {{"MASTER_PORT", "0"}}), "MASTER_PORT", "0"},
        Bad{"PortTooLarge", with(kTorchrun, {{"MASTER_PORT", "65536"}}), "MASTER_PORT", "65536"},
        Bad{"OpenMpiHalf", without(kOpenMpi, "OMPI_COMM_WORLD_SIZE"), "OMPI_COMM_WORLD_SIZE",
            "'1'"},
        Bad{"PmiHalf", {{"PMI_SIZE", "2"}}, "PMI_RANK", "'2'"},
        Bad{"SlurmWithoutRank", without(kSlurm, "SLURM_PROCID"), "SLURM_PROCID", "gpu[07-09]"},
        Bad{"SlurmWithoutNode", without(kSlurm, "SLURM_NODEID"), "SLURM_NODEID", "gpu[07-09]"},
        Bad{"SlurmNoHost", with(kSlurm, {{"SLURM_STEP_NODELIST", "["}}), "SLURM_STEP_NODELIST",
            "'['"},
        Bad{"SlurmTasks", with(kSlurm, {{"SLURM_LOCALID", "5"}}), "SLURM_LOCALID", "5"}),
    [](const auto& info) { return info.param.name; });

TEST_P(BadEnvironment, IsAnErrorThatNamesVariableAndValue) {
  EXPECT_THAT([] { parse(GetParam().map); },
              ThrowsMessage<InvalidArgument>(
                  AllOf(HasSubstr(GetParam().variable), HasSubstr(GetParam().value))));
}

TEST(LaunchEnv, FindsTheFirstHostOfASlurmNodeList) {
  EXPECT_EQ(first_slurm_host("alone"), "alone");
  EXPECT_EQ(first_slurm_host("a,b"), "a");
  EXPECT_EQ(first_slurm_host("gpu[03-07,11],login"), "gpu03");
  EXPECT_EQ(first_slurm_host("gpu[11,03]"), "gpu11");
  EXPECT_EQ(first_slurm_host("rack[1-2]-node"), "rack1-node");
  EXPECT_EQ(first_slurm_host("rack[1-2]-node,other"), "rack1-node");
  EXPECT_THROW(first_slurm_host(""), InvalidArgument);
  EXPECT_THROW(first_slurm_host("gpu[03"), InvalidArgument);
}

TEST(LaunchEnv, DerivedPortsAreSpreadBelowTheEphemeralOnes) {
  std::set<std::uint16_t> ports;
  for (int job = 0; job < 100; ++job)
    ports.insert(derived_port("slurm-" + std::to_string(job) + ".0"));
  EXPECT_GT(ports.size(), 90u);
  EXPECT_GE(*ports.begin(), 10000);
  EXPECT_LT(*ports.rbegin(), 30000);
}

}  // namespace
}  // namespace cohort::comm
