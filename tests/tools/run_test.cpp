// `cohort run` from outside: real processes, real signals, and a look at what is left afterwards.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>

#include "cohort/comm/store.h"
#include "cohort/core/error.h"
#include "support/child_process.h"

namespace cohort::tools {
namespace {

namespace fs = std::filesystem;
using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using test::ChildProcess;
using test::eventually;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// Generous for a busy machine with sanitizers; a hang is what it tells from a success.
constexpr Milliseconds kSoon = 30s;
const std::string kCohort = COHORT_TEST_BIN "/cohort";
const std::string kRank = COHORT_TEST_BIN "/rank_program";

std::string read_file(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return std::move(text).str();
}

// One launch whose every process, to any depth, carries a mark in its environment.
class Job {
 public:
  explicit Job(std::vector<std::string> args, std::vector<std::string> environment = {})
      : mark_(str("COHORT_TEST_MARK=", ::getpid(), ".", ++count)),
        process_(with_cohort(std::move(args)), with_mark(std::move(environment), mark_)) {}

  // What a failed test leaves behind must not disturb the next one.
  ~Job() {
    for (const pid_t pid : alive()) ::kill(pid, SIGKILL);
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  ChildProcess& process() { return process_; }
  // The launcher's exit code once it has ended; -1000 when it did not.
  int wait() { return process_.wait(kSoon).value_or(-1000); }

  // The processes of this job that are there now, ours aside.
  std::vector<pid_t> alive() const {
    std::vector<pid_t> pids;
    for (const auto& entry : fs::directory_iterator("/proc")) {
      const std::string name = entry.path().filename();
      if (name.find_first_not_of("0123456789") != std::string::npos) continue;
      if (read_file(entry.path() / "environ").find(mark_ + '\0') != std::string::npos) {
        pids.push_back(std::stoi(name));
      }
    }
    return pids;
  }
  bool nothing_left() const {
    return eventually([this] { return alive().empty(); }, kSoon);
  }
  pid_t keeper() const {
    for (const pid_t pid : alive()) {
      if (read_file(str("/proc/", pid, "/comm")) == "cohort-keeper\n") return pid;
    }
    return -1;
  }

 private:
  static std::vector<std::string> with_cohort(std::vector<std::string> args) {
    args.insert(args.begin(), {kCohort, "run"});
    return args;
  }
  static std::vector<std::string> with_mark(std::vector<std::string> environment,
                                            const std::string& mark) {
    environment.push_back(mark);
    return environment;
  }
  static inline int count = 0;
  std::string mark_;
  ChildProcess process_;
};

// Both ways of ending descendants: PID namespace (where permitted) and subreaper.
class Run : public testing::TestWithParam<bool> {
 protected:
  std::vector<std::string> args(std::vector<std::string> rest) const {
    if (!GetParam()) rest.insert(rest.begin(), "--no-pid-namespace");
    return rest;
  }
  std::vector<std::string> sh(std::vector<std::string> options, const std::string& script) const {
    options.insert(options.end(), {"sh", "-c", script});
    return args(std::move(options));
  }
};

INSTANTIATE_TEST_SUITE_P(Isolation, Run, testing::Bool(),
                         [](const auto& info) { return info.param ? "Namespace" : "Subreaper"; });

TEST_P(Run, SetsWhatTorchrunSets) {
  Job job(sh({"-n", "2", "--job-id", "night"}, "env | sort"));
  EXPECT_EQ(job.wait(), 0) << job.process().err();
  for (const char* line :
       {"[1] RANK=1\n", "[1] LOCAL_RANK=1\n", "[1] WORLD_SIZE=2\n", "[1] LOCAL_WORLD_SIZE=2\n",
        "[1] GROUP_RANK=0\n", "[1] GROUP_WORLD_SIZE=1\n", "[1] ROLE_RANK=1\n",
        "[1] ROLE_WORLD_SIZE=2\n", "[1] MASTER_ADDR=127.0.0.1\n",
        "[1] MASTER_PORT=", "[1] TORCHELASTIC_RUN_ID=night\n", "[1] TORCHELASTIC_RESTART_COUNT=0\n",
        "[1] COHORT_STORE_HOSTED=1\n", "[1] COHORT_JOB_SECRET=", "[0] RANK=0\n"}) {
    EXPECT_THAT(job.process().out(), HasSubstr(line));
  }
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Run, RanksMeetInTheStoreOfTheLauncher) {
  Job job(args({"-n", "3", kRank, "join"}));
  EXPECT_EQ(job.wait(), 0) << job.process().err();
  for (int rank = 0; rank < 3; ++rank) {
    EXPECT_THAT(job.process().out(), HasSubstr(str("[", rank, "] joined ", rank, " of 3\n")));
  }
}

TEST_P(Run, PeersLearnOfADeathThroughTheStore) {
  Job job(args({"-n", "3", kRank, "watch"}));
  EXPECT_EQ(job.wait(), 128 + SIGKILL);
  EXPECT_THAT(job.process().err(), HasSubstr("[0] rank 0 saw that rank 1 is dead"));
  EXPECT_THAT(job.process().err(), HasSubstr("[2] rank 2 saw that rank 1 is dead"));
  EXPECT_THAT(job.process().err(), HasSubstr("cohort run: rank 1 (pid "));
  EXPECT_TRUE(job.nothing_left());
}

struct Ending {
  const char* name;
  const char* script;  // $RANK tells them apart
  int code;
  const char* message;  // of the launcher; nullptr: it says nothing
};

class Endings : public testing::TestWithParam<Ending> {};

INSTANTIATE_TEST_SUITE_P(
    Each, Endings,
    testing::Values(
        Ending{"AllWell", "exit 0", 0, nullptr},
        Ending{"OneLeavesEarly", "[ $RANK = 0 ] || { sleep 0.3; echo late; }", 0, nullptr},
        Ending{"ExitCode", "[ $RANK = 0 ] || exit 42", 42, "rank 1 (pid "},
        Ending{"Signal", "[ $RANK = 0 ] || kill -SEGV $$", 128 + SIGSEGV, "was ended by SIGSEGV"},
        Ending{"Killed", "[ $RANK = 0 ] || kill -KILL $$", 128 + SIGKILL, "was ended by SIGKILL"},
        Ending{"FirstFailureCounts", "[ $RANK = 1 ] && exit 5; sleep 1; exit 6", 5, "exit code 5"},
        // 71 says "another rank failed first": that one's code is the job's.
        Ending{"TheCauseBeatsWhoHeardOfIt", "[ $RANK = 1 ] && exit 71; sleep 1; exit 6", 6,
               "was the cause"}),
    [](const auto& info) { return info.param.name; });

TEST_P(Endings, GiveTheExitCodeOfTheFirstFailingRank) {
  Job job({"-n", "2", "sh", "-c", GetParam().script});
  EXPECT_EQ(job.wait(), GetParam().code);
  if (GetParam().message) {
    EXPECT_THAT(job.process().err(), HasSubstr(GetParam().message));
  } else {
    EXPECT_EQ(job.process().err(), "");
  }
  EXPECT_TRUE(job.nothing_left());
}

struct Refusal {
  const char* name;
  std::vector<std::string> args;
  int code;
  const char* message;
};

class Refusals : public testing::TestWithParam<Refusal> {};

INSTANTIATE_TEST_SUITE_P(
    Each, Refusals,
    testing::Values(
        Refusal{"NoRanks", {"-n", "0", "true"}, 2, "-n is 0"},
        Refusal{"NegativeRanks", {"-n", "-3", "true"}, 2, "-n is -3"},
        Refusal{"AbsurdRanks", {"-n", "100000", "true"}, 2, "-n is 100000"},
        Refusal{"RanksOverflow", {"-n", "99999999999", "true"}, 2, "99999999999"},
        Refusal{"RanksAreText", {"-n", "two", "true"}, 2, "two"},
        Refusal{"NoProgram", {"-n", "2"}, 2, "no program"},
        Refusal{"UnknownOption", {"--frobnicate", "true"}, 2, "--frobnicate"},
        Refusal{"NodeRankOutside",
                {"--nnodes", "2", "--node-rank", "2", "true"},
                2,
                "--node-rank is 2"},
        Refusal{"NodesWithoutMaster", {"--nnodes", "2", "true"}, 2, "--master-addr"},
        Refusal{"NodesWithoutPort",
                {"--nnodes", "2", "--master-addr", "127.0.0.1", "true"},
                2,
                "--master-port"},
        Refusal{"NodesWithoutSecret",
                {"--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", "1234", "true"},
                2,
                "COHORT_JOB_SECRET"},
        Refusal{"PortTooLarge", {"--master-port", "65536", "true"}, 2, "65536"},
        Refusal{"NegativeGrace", {"--grace", "-1", "true"}, 2, "--grace"},
        Refusal{"ProgramMissing",
                {"-n", "2", "no-such-program"},
                127,
                "no-such-program: no such program"},
        Refusal{"PathMissing", {"-n", "2", "/no/such/program"}, 127, "/no/such/program"},
        Refusal{"NotExecutable", {"-n", "2", "/etc/passwd"}, 126, "/etc/passwd: is not executable"},
        Refusal{"AFolder", {"-n", "2", "/tmp"}, 126, "/tmp: is not executable"},
        Refusal{"LogFolderIsAFile", {"--log-dir", "/etc/passwd", "true"}, 1, "--log-dir"}),
    [](const auto& info) { return info.param.name; });

TEST_P(Refusals, AreClearAndStartNothing) {
  Job job(GetParam().args);
  EXPECT_EQ(job.wait(), GetParam().code);
  EXPECT_THAT(job.process().err(), HasSubstr(GetParam().message));
  EXPECT_EQ(job.process().out(), "");
  EXPECT_TRUE(job.nothing_left());
}

TEST(Command, AnUnknownSubcommandPrintsTheHelp) {
  ChildProcess process({kCohort, "dance"});
  EXPECT_EQ(process.wait(kSoon), 2);
  EXPECT_THAT(process.err(),
              AllOf(HasSubstr("'dance'"), HasSubstr("Subcommands:"), HasSubstr("run")));
}

TEST(RunProgram, TakesEverythingBehindItsName) {
  Job job({"-n", "1", "--", "sh", "-c", "printf '%s|' \"$@\"", "x", "-n", "5", "--", "--help"});
  EXPECT_EQ(job.wait(), 0) << job.process().err();
  EXPECT_EQ(job.process().out(), "[0] -n|5|--|--help|\n");
}

TEST(RunProgram, AFileThatCannotBeLoadedIsReportedByTheRank) {
  const fs::path path = fs::temp_directory_path() / str("cohort_bad_interpreter_", ::getpid());
  std::ofstream(path) << "#!/no/such/interpreter\n";
  fs::permissions(path, fs::perms::owner_all);
  Job job({"-n", "2", path});
  EXPECT_EQ(job.wait(), 127);
  EXPECT_THAT(job.process().err(), HasSubstr("could not be started"));
  fs::remove(path);
}

TEST_P(Run, LinesAreNeverTorn) {
  Job job(
      sh({"-n", "3"},
         "i=0; while [ $i -lt 1500 ]; do printf '%s %01000d end\\n' $RANK $i; i=$((i+1)); done"));
  EXPECT_EQ(job.wait(), 0);
  std::istringstream lines(job.process().out());
  std::map<std::string, int> next;
  for (std::string line; std::getline(lines, line);) {
    ASSERT_EQ(line.size(), std::string("[0] 0  end").size() + 1000) << line;
    const std::string rank = line.substr(1, 1);
    ASSERT_EQ(line.substr(0, 6), str("[", rank, "] ", rank, " "));
    ASSERT_EQ(std::stoi(line.substr(6, 1000)), next[rank]++);
  }
  EXPECT_EQ(next, (std::map<std::string, int>{{"0", 1500}, {"1", 1500}, {"2", 1500}}));
}

TEST_P(Run, APartialLastLineIsNotLost) {
  Job job(sh({"-n", "2"}, "printf 'no end %s' $RANK; printf 'nor here' >&2"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_THAT(job.process().out(), AllOf(HasSubstr("[0] no end 0\n"), HasSubstr("[1] no end 1\n")));
  EXPECT_THAT(job.process().err(), HasSubstr("[1] nor here\n"));
}

TEST_P(Run, OutputMayBeAnyBytesAndVeryLong) {
  Job job(sh({"-n", "1"}, "head -c 3000000 /dev/zero; printf '\\377\\n\\000'"));
  EXPECT_EQ(job.wait(), 0);
  const std::string& out = job.process().out();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\0'), 3'000'001);
  EXPECT_EQ(std::count(out.begin(), out.end(), '\xff'), 1);
}

TEST_P(Run, LogFilesHoldEachRanksBytes) {
  const fs::path folder = fs::temp_directory_path() / str("cohort_run_test_", ::getpid()) / "deep";
  Job job(sh({"-n", "2", "--log-dir", folder}, "echo out $RANK; echo err >&2; printf '\\000tail'"));
  EXPECT_EQ(job.wait(), 0);
  EXPECT_EQ(read_file(folder / "rank0.log"), std::string("out 0\nerr\n\0tail", 15));
  EXPECT_EQ(read_file(folder / "rank1.log"), std::string("out 1\nerr\n\0tail", 15));
  EXPECT_EQ(job.process().out(), "");
  fs::remove_all(folder.parent_path());
}

TEST(RunThreads, OneThreadPerRankUnlessToldOtherwise) {
  const std::vector<std::string> program = {"sh", "-c", "echo threads $OMP_NUM_THREADS"};
  const auto threads = [&](std::vector<std::string> options, std::vector<std::string> environment) {
    options.insert(options.end(), program.begin(), program.end());
    Job job(options, std::move(environment));
    EXPECT_EQ(job.wait(), 0);
    return job.process().out();
  };
  ::unsetenv("OMP_NUM_THREADS");
  EXPECT_EQ(threads({}, {}), "[0] threads 1\n");
  EXPECT_EQ(threads({}, {"OMP_NUM_THREADS=3"}), "[0] threads 3\n");
  EXPECT_EQ(threads({"--threads-per-rank", "5"}, {"OMP_NUM_THREADS=3"}), "[0] threads 5\n");
}

TEST(RunThreads, CoresAreDividedAmongTheRanks) {
  const int cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  const std::string script = "echo $(grep Cpus_allowed_list /proc/self/status)";
  Job pinned({"-n", std::to_string(cpus), "sh", "-c", script});
  EXPECT_EQ(pinned.wait(), 0);
  std::map<std::string, int> lists;
  std::istringstream lines(pinned.process().out());
  for (std::string line; std::getline(lines, line);) ++lists[line.substr(line.rfind(' '))];
  EXPECT_EQ(static_cast<int>(lists.size()), cpus);  // no two ranks share one
  Job loose({"-n", std::to_string(cpus), "--no-pin", "sh", "-c", script});
  EXPECT_EQ(loose.wait(), 0);
  Job crowded({"-n", std::to_string(cpus + 1), "sh", "-c", script});
  EXPECT_EQ(crowded.wait(), 0);
}

TEST(RunInput, GoesToRankZeroAlone) {
  ChildProcess process(
      {"sh", "-c", "echo hello | " + kCohort + " run -n 2 sh -c 'echo $RANK reads $(cat)'"});
  EXPECT_EQ(process.wait(kSoon), 0);
  EXPECT_THAT(process.out(), AllOf(HasSubstr("[0] 0 reads hello\n"), HasSubstr("[1] 1 reads\n")));
}

TEST_P(Run, SurvivorsHaveTimeToRaiseTheirOwnErrors) {
  Job job(sh({"-n", "2"}, "[ $RANK = 1 ] && exit 7; sleep 0.3; echo my own error >&2; exit 8"));
  EXPECT_EQ(job.wait(), 7);
  EXPECT_THAT(job.process().err(), HasSubstr("[0] my own error"));
  EXPECT_THAT(job.process().err(), HasSubstr("rank 1"));
}

TEST_P(Run, StubbornSurvivorsAreKilledWhenTheGraceTimeIsOver) {
  const fs::path ready = fs::temp_directory_path() / str("cohort_run_ready_", ::getpid());
  Job job(sh({"-n", "2", "--grace", "3"},
             "if [ $RANK = 1 ]; then while [ ! -e $READY ]; do sleep 0.02; done; exit 7; fi;"
             "trap 'echo asked' TERM; touch $READY; while :; do sleep 0.05; done"),
          {str("READY=", ready.string())});
  EXPECT_EQ(job.wait(), 7);
  EXPECT_THAT(job.process().out(), HasSubstr("[0] asked"));  // SIGTERM comes first
  EXPECT_THAT(job.process().err(), HasSubstr("grace time is over"));
  EXPECT_TRUE(job.nothing_left());
  fs::remove(ready);
}

TEST_P(Run, AStoppedSurvivorIsKilledToo) {
  Job job(
      sh({"-n", "2", "--grace", "0.3"}, "[ $RANK = 1 ] && { sleep 0.1; exit 7; }; kill -STOP $$"));
  EXPECT_EQ(job.wait(), 7);
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Run, HelpersThatKeepThePipesOpenHoldNothingUp) {
  Job job(
      sh({"-n", "2"},
         "sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep 1000' &) ; exit 0"));
  EXPECT_EQ(job.wait(), 0) << job.process().err();
  EXPECT_TRUE(job.nothing_left());
}

// Ranks with helpers: in their group, in a group and session of their own, and daemonised; all of
// them ignore what can be ignored.
const char* const kStubbornFamily =
    "trap '' INT TERM HUP QUIT; sleep 1000 & setsid sleep 1000 & (setsid sh -c 'sleep 1000 & sleep "
    "1000' &);"
    "echo up; while :; do sleep 1; done";

void wait_until_up(Job& job, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    ASSERT_TRUE(job.process().wait_for(str("[", rank, "] up"), kSoon));
  }
}

struct Death {
  int signal;
  bool isolate;
};

class LauncherGets : public testing::TestWithParam<Death> {};

INSTANTIATE_TEST_SUITE_P(Each, LauncherGets,
                         testing::Values(Death{SIGTERM, true}, Death{SIGTERM, false},
                                         Death{SIGINT, true}, Death{SIGINT, false},
                                         Death{SIGHUP, true}, Death{SIGHUP, false},
                                         Death{SIGQUIT, true}, Death{SIGQUIT, false},
                                         Death{SIGKILL, true}, Death{SIGKILL, false}),
                         [](const auto& info) {
                           return std::string(::sigabbrev_np(info.param.signal)) +
                                  (info.param.isolate ? "Namespace" : "Subreaper");
                         });

TEST_P(LauncherGets, NoRankOrGrandchildSurvives) {
  const auto [signal, isolate] = GetParam();
  std::vector<std::string> args = {"-n", "2", "--grace", "0.4"};
  if (!isolate) args.emplace_back("--no-pid-namespace");
  args.insert(args.end(), {"sh", "-c", kStubbornFamily});
  Job job(args);
  wait_until_up(job, 2);
  EXPECT_GE(job.alive().size(), 10u);
  job.process().signal(signal);
  EXPECT_EQ(job.wait(), signal == SIGKILL ? -SIGKILL : 128 + signal);
  EXPECT_TRUE(job.nothing_left());
  EXPECT_TRUE(job.process().wait_for_end_of_output(kSoon));
}

TEST_P(Run, ASecondInterruptKillsAtOnce) {
  Job job(sh({"-n", "2", "--grace", "3600"}, kStubbornFamily));
  wait_until_up(job, 2);
  job.process().signal(SIGINT);
  EXPECT_EQ(job.process().wait(200ms), std::nullopt);
  job.process().signal(SIGINT);
  EXPECT_EQ(job.wait(), 128 + SIGINT);
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Run, UserSignalsReachTheRanksAndEndNothing) {
  Job job(sh({"-n", "2"},
             "trap 'echo usr1' USR1; trap 'echo usr2; exit 0' USR2; echo up; while :; do sleep "
             "0.05; done"));
  wait_until_up(job, 2);
  job.process().signal(SIGUSR1);
  EXPECT_TRUE(job.process().wait_for("[0] usr1", kSoon));
  EXPECT_TRUE(job.process().wait_for("[1] usr1", kSoon));
  job.process().signal(SIGUSR2);
  EXPECT_EQ(job.wait(), 0) << job.process().err();
  EXPECT_THAT(job.process().out(), AllOf(HasSubstr("[0] usr2"), HasSubstr("[1] usr2")));
}

TEST_P(Run, RanksThatEndWellOnSigtermEndTheJobWell) {
  Job job(sh({"-n", "2"},
             "trap 'echo saved; exit $((RANK * 9))' TERM; echo up; while :; do sleep 0.05; done"));
  wait_until_up(job, 2);
  job.process().signal(SIGTERM);
  EXPECT_EQ(job.wait(), 9);  // a rank's own exit code is passed on
  EXPECT_THAT(job.process().out(), AllOf(HasSubstr("[0] saved"), HasSubstr("[1] saved")));
}

TEST_P(Run, TheDeathOfTheKeeperEndsTheRanks) {
  Job job(sh({"-n", "2"}, kStubbornFamily));
  wait_until_up(job, 2);
  const pid_t keeper = job.keeper();
  ASSERT_GT(keeper, 0);
  ::kill(keeper, SIGKILL);
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.process().err(), HasSubstr("keeper"));
  EXPECT_TRUE(job.nothing_left());
}

TEST_P(Run, AJobWhoseReaderHasGoneEnds) {
  ChildProcess process({"sh", "-c",
                        "{ " + kCohort + " run " + (GetParam() ? "" : "--no-pid-namespace ") +
                            "-n 1 sh -c 'while :; do echo line; sleep 0.01; done';"
                            " echo code $? >&2; } | head -n 3"});
  EXPECT_EQ(process.wait(kSoon), 0);
  EXPECT_EQ(process.out(), "[0] line\n[0] line\n[0] line\n");
  EXPECT_THAT(process.err(), HasSubstr(str("code ", 128 + SIGPIPE)));
}

TEST(RunPort, ATakenPortIsAClearErrorAndStartsNothing) {
  const comm::StoreServer holder({});
  Job job({"-n", "2", "--master-port", std::to_string(holder.port()), "sh", "-c", "echo started"});
  EXPECT_EQ(job.wait(), 1);
  EXPECT_THAT(job.process().err(), AllOf(HasSubstr(std::to_string(holder.port())),
                                         HasSubstr("in use"), HasSubstr("--master-port")));
  EXPECT_EQ(job.process().out(), "");
  EXPECT_TRUE(job.nothing_left());
}

TEST(RunPort, IsFreeAgainWhenTheJobHasEnded) {
  std::uint16_t port = 0;
  { port = comm::StoreServer({}).port(); }
  for (int i = 0; i < 2; ++i) {
    Job job({"-n", "2", "--master-port", std::to_string(port), kRank, "join"});
    EXPECT_EQ(job.wait(), 0) << job.process().err();
  }
  Job killed({"-n", "1", "--master-port", std::to_string(port), "sh", "-c", "echo up; sleep 1000"});
  wait_until_up(killed, 1);
  killed.process().signal(SIGKILL);
  EXPECT_EQ(killed.wait(), -SIGKILL);
  EXPECT_TRUE(killed.nothing_left());
  const comm::StoreServer again({.port = port});
  EXPECT_EQ(again.port(), port);
}

TEST(RunPort, TwoJobsWithOneNameDoNotMeet) {
  Job first({"-n", "2", "--job-id", "twin", kRank, "join"});
  Job second({"-n", "3", "--job-id", "twin", kRank, "join"});
  EXPECT_EQ(first.wait(), 0) << first.process().err();
  EXPECT_EQ(second.wait(), 0) << second.process().err();
  EXPECT_THAT(first.process().out(), Not(HasSubstr("of 3")));
}

std::vector<std::string> node(int rank, std::uint16_t port, std::vector<std::string> rest) {
  std::vector<std::string> args = {"-n",
                                   "2",
                                   "--nnodes",
                                   "2",
                                   "--node-rank",
                                   std::to_string(rank),
                                   "--master-addr",
                                   "127.0.0.1",
                                   "--master-port",
                                   std::to_string(port)};
  args.insert(args.end(), rest.begin(), rest.end());
  return args;
}

TEST(RunNodes, TwoLaunchersMakeOneJob) {
  std::uint16_t port = 0;
  { port = comm::StoreServer({}).port(); }
  Job second(node(1, port, {kRank, "join"}), {"COHORT_JOB_SECRET=shared"});
  Job first(node(0, port, {kRank, "join"}), {"COHORT_JOB_SECRET=shared"});
  EXPECT_EQ(second.wait(), 0) << second.process().err();
  EXPECT_EQ(first.wait(), 0) << first.process().err();
  EXPECT_THAT(first.process().out(),
              AllOf(HasSubstr("[0] joined 0 of 4"), HasSubstr("[1] joined 1 of 4")));
  EXPECT_THAT(second.process().out(),
              AllOf(HasSubstr("[2] joined 2 of 4"), HasSubstr("[3] joined 3 of 4")));
}

TEST(RunNodes, AMissingNodeIsNamedByItsRanks) {
  std::uint16_t port = 0;
  { port = comm::StoreServer({}).port(); }
  Job first(node(0, port, {kRank, "join", "500"}), {"COHORT_JOB_SECRET=shared"});
  EXPECT_EQ(first.wait(), 4);
  EXPECT_THAT(first.process().err(), HasSubstr("2 of 4 ranks joined"));
  EXPECT_THAT(first.process().err(), HasSubstr("missing: 2, 3"));
}

TEST(RunNodes, ANodeWithAnotherSecretGetsNothing) {
  std::uint16_t port = 0;
  { port = comm::StoreServer({}).port(); }
  Job first(node(0, port, {kRank, "join", "3000"}), {"COHORT_JOB_SECRET=shared"});
  Job second(node(1, port, {kRank, "join"}), {"COHORT_JOB_SECRET=guess"});
  EXPECT_EQ(second.wait(), 4);
  EXPECT_THAT(second.process().err(), HasSubstr("COHORT_JOB_SECRET"));
  EXPECT_EQ(first.wait(), 4);
}

TEST(RunNodes, ANodeRankGivenTwiceFailsOnTheTakenPort) {
  std::uint16_t port = 0;
  { port = comm::StoreServer({}).port(); }
  Job first(node(0, port, {"sh", "-c", "echo up; sleep 1000"}), {"COHORT_JOB_SECRET=shared"});
  wait_until_up(first, 2);
  Job twin(node(0, port, {kRank, "join"}), {"COHORT_JOB_SECRET=shared"});
  EXPECT_EQ(twin.wait(), 1);
  EXPECT_THAT(twin.process().err(), HasSubstr("in use"));
  first.process().signal(SIGKILL);
  EXPECT_TRUE(first.nothing_left());
}

}  // namespace
}  // namespace cohort::tools
