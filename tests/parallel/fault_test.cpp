// Training whose ranks are processes, one of which goes wrong at a random moment of a step: every
// other rank ends with an error that names it, in time, and nothing is left behind (RankJob looks).
// Rows 1 to 5 of the list of faults. Each seed replays its fault, not its moment to the
// microsecond.

#include <gmock/gmock.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>
#include <thread>

#include "cohort/comm/init.h"
#include "cohort/core/error.h"
#include "comm/worlds.h"
#include "support/rank_job.h"

namespace cohort::test {
namespace {

namespace fs = std::filesystem;
using testing::AnyOf;
using testing::HasSubstr;

// COHORT_FAULT_SEEDS faults of each kind.
int seeds() {
  const char* text = std::getenv("COHORT_FAULT_SEEDS");
  return text ? std::atoi(text) : 5;
}

// What is drawn from a seed.
struct Fault {
  Fault(std::string what, int seed) : kind(std::move(what)) {
    std::mt19937 draw(static_cast<unsigned>(seed) * 7919u + std::hash<std::string>{}(kind));
    world = 2 + static_cast<int>(draw() % 2);
    victim = static_cast<int>(draw()) % world;
    if (victim < 0) victim += world;
    step = 3 + static_cast<int>(draw() % 10);
    moment = static_cast<int>(draw() % 30);
    delay = std::chrono::microseconds(draw() % 30'000);
    if (over_gloo(seed)) backend = "gloo";
  }
  // Every other seed, where it is built.
  static bool over_gloo(int seed) { return seed % 2 == 0 && is_built(Over::gloo); }

  std::string kind;
  std::string backend = "shm";
  int world;
  int victim;
  int step;
  int moment;
  std::chrono::microseconds delay;  // of faults that come from outside, once the job is under way
};

class FaultJob : public RankJob {
 public:
  // From outside, KIND is "none".
  FaultJob(const Fault& fault, const std::string& kind, Milliseconds timeout, int steps = 0)
      : FaultJob(fault, kind, timeout, steps,
                 fs::temp_directory_path() / str("cohort-faults-", ::getpid())) {}
  ~FaultJob() {
    std::error_code ignored;
    fs::remove_all(traces_, ignored);
  }

  // What `cohort trace desync` says about the job, and its exit code.
  std::pair<int, std::string> desync() const {
    ChildProcess tool({COHORT_TEST_BIN "/cohort", "trace", "desync", traces_});
    const int code = tool.wait(kStart).value_or(-1000);
    tool.wait_for_end_of_output(Milliseconds(1'000));
    return {code, tool.out() + tool.err()};
  }

 private:
  FaultJob(const Fault& fault, const std::string& kind, Milliseconds timeout, int steps,
           const fs::path& traces)
      : RankJob(fault.world,
                {COHORT_TEST_BIN "/fault_child", kind, std::to_string(fault.victim),
                 std::to_string(fault.step), std::to_string(fault.moment),
                 std::to_string(timeout.count()), std::to_string(steps), fault.backend},
                {"COHORT_TRACE_DIR=" + traces.string(), "COHORT_LOG=off"}),
        traces_(traces) {}

  const fs::path traces_;
};

constexpr Milliseconds kMinute{60'000};

std::string described(const Fault& fault, int seed) {
  return str("seed ", seed, ": ", fault.kind, " of rank ", fault.victim, " of ", fault.world,
             " over ", fault.backend, ", step ", fault.step, ", moment ", fault.moment, ", after ",
             fault.delay.count(), " us");
}

// The error of one rank: it names the victim, and what this rank was doing.
void expect_named(const std::string& error, int victim) {
  EXPECT_THAT(error, HasSubstr(str("rank ", victim)));
  // Of an exception in a backward, DDP itself tells the others.
  EXPECT_THAT(error,
              AnyOf(HasSubstr("[all_reduce]"), HasSubstr("[broadcast]"), HasSubstr("[allocate]"),
                    HasSubstr("[split]"), HasSubstr("[barrier]"), HasSubstr("[DDP]")));
}

class Faults : public testing::TestWithParam<const char*> {
 protected:
  // Runs `body` for each seed until one of them has failed.
  template <typename Body>
  void for_each_seed(Body body) {
    for (int seed = 0; seed < seeds() && !HasFailure(); ++seed) {
      const Fault fault(GetParam(), seed);
      SCOPED_TRACE(described(fault, seed));
      body(fault);
    }
  }
};

// Ranks that call different things: all of them end, and the trace says who parted.
class PartedFault : public Faults {};

TEST_P(PartedFault, RankIsNamedByAllAndByTheTrace) {
  for_each_seed([](const Fault& fault) {
    FaultJob job(fault, fault.kind, kMinute);
    bool anybody_saw_it = false;
    for (int rank = 0; rank < fault.world; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      const auto code = job.code(at, rank == 0 ? RankJob::kStart : RankJob::kPromptly);
      // A rank that waits in another group hears of it as its peer's failure.
      EXPECT_THAT(code, AnyOf(comm::kExitMismatch, comm::kExitPeer)) << job[at].err();
      anybody_saw_it = anybody_saw_it || code == comm::kExitMismatch;
      expect_named(job[at].err(), fault.victim);
    }
    EXPECT_TRUE(anybody_saw_it);
    const auto [code, sentence] = job.desync();
    EXPECT_EQ(code, 3) << sentence;
    EXPECT_THAT(sentence, HasSubstr(str("rank ", fault.victim)));
  });
}

INSTANTIATE_TEST_SUITE_P(By, PartedFault,
                         testing::Values("skip", "extra", "dtype", "size", "order"),
                         [](const auto& info) { return std::string(info.param); });

class ThrownFault : public Faults {};

TEST_P(ThrownFault, ExceptionReachesAllRanksWithItsText) {
  for_each_seed([](const Fault& fault) {
    FaultJob job(fault, fault.kind, kMinute);
    const auto victim = static_cast<std::size_t>(fault.victim);
    const std::string text = str("the fault of rank ", fault.victim);
    EXPECT_EQ(job.code(victim, RankJob::kStart), comm::kExitError) << job[victim].err();
    EXPECT_THAT(job[victim].err(), HasSubstr(text));
    for (std::size_t rank = 0; rank < job.size(); ++rank) {
      if (rank == victim) continue;
      EXPECT_EQ(job.code(rank), comm::kExitPeer) << job[rank].err();
      expect_named(job[rank].err(), fault.victim);
      EXPECT_THAT(job[rank].err(), HasSubstr(text));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(By, ThrownFault, testing::Values("throw"),
                         [](const auto& info) { return std::string(info.param); });

class SignalledFault : public Faults {};

TEST_P(SignalledFault, RankIsNamedByAllOthers) {
  const bool kills = std::string(GetParam()) == "kill";
  for_each_seed([&](const Fault& fault) {
    FaultJob job(fault, "none", kills ? kMinute : Milliseconds(2'000));
    job.wait_until_running();
    std::this_thread::sleep_for(fault.delay);  // the moment is what is random
    const auto victim = static_cast<std::size_t>(fault.victim);
    job[victim].signal(kills ? SIGKILL : SIGSTOP);
    for (std::size_t rank = 0; rank < job.size(); ++rank) {
      if (rank == victim) continue;
      // One that waits in the second group may hear of another's timeout.
      const auto code = job.code(rank, Milliseconds(2'000) + RankJob::kPromptly);
      EXPECT_THAT(code, AnyOf(kills ? comm::kExitPeer : comm::kExitTimeout, comm::kExitPeer))
          << job[rank].err();
      expect_named(job[rank].err(), fault.victim);
    }
    if (!kills) {
      job[victim].signal(SIGCONT);
      EXPECT_THAT(job.code(victim), AnyOf(comm::kExitTimeout, comm::kExitPeer))
          << job[victim].err();
    } else {
      const auto [code, sentence] = job.desync();
      EXPECT_EQ(code, 3) << sentence;
      EXPECT_THAT(sentence, HasSubstr(str("there is no dump of rank ", fault.victim)));
    }
  });
}

INSTANTIATE_TEST_SUITE_P(By, SignalledFault, testing::Values("kill", "stop"),
                         [](const auto& info) { return std::string(info.param); });

// Stopped and resumed within the deadline: the training goes on to its end.
void pause_a_rank(const Fault& fault, std::chrono::milliseconds pause) {
  FaultJob job(fault, "none", kMinute, /*steps=*/200);
  job.wait_until_running();
  std::this_thread::sleep_for(fault.delay);
  job[static_cast<std::size_t>(fault.victim)].signal(SIGSTOP);
  std::this_thread::sleep_for(pause);
  job[static_cast<std::size_t>(fault.victim)].signal(SIGCONT);
  for (std::size_t rank = 0; rank < job.size(); ++rank) {
    EXPECT_EQ(job.code(rank, RankJob::kStart), 0) << job[rank].err();
  }
}

class PausedFault : public Faults {};

TEST_P(PausedFault, RankCostsOnlyTime) {
  for_each_seed([](const Fault& fault) { pause_a_rank(fault, Milliseconds(300)); });
}

INSTANTIATE_TEST_SUITE_P(By, PausedFault, testing::Values("pause"),
                         [](const auto& info) { return std::string(info.param); });

TEST(PausedFault10s, IsTolerated) {
  pause_a_rank(Fault("pause", 1), Milliseconds(10'000));
}

}  // namespace
}  // namespace cohort::test
