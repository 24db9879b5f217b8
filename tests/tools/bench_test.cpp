// `cohort bench` from outside, with sizes that take no time: what it prints, never how fast it was.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "support/child_process.h"

namespace cohort::tools {
namespace {

using test::ChildProcess;
using testing::HasSubstr;

const std::string kCohort = COHORT_TEST_BIN "/cohort";
// Generous for a busy machine with sanitizers; a hang is what it tells from a success.
constexpr Milliseconds kSoon{60'000};

struct Outcome {
  int code = -1000;
  std::string out;
  std::string err;
};

Outcome bench(std::vector<std::string> args, const std::vector<std::string>& prefix = {}) {
  std::vector<std::string> all = prefix;
  all.push_back(kCohort);
  all.push_back("bench");
  all.insert(all.end(), args.begin(), args.end());
  ChildProcess process(std::move(all));
  process.wait_for_end_of_output(kSoon);
  const int code = process.wait(kSoon).value_or(-1000);
  return {code, process.out(), process.err()};
}

nlohmann::json only_line(const std::string& text) {
  std::istringstream lines(text);
  std::string line;
  std::getline(lines, line);
  std::string more;
  EXPECT_FALSE(std::getline(lines, more)) << text;
  return nlohmann::json::parse(line);
}

struct Case {
  std::string title;
  std::vector<std::string> args;
  std::string name;
  int ranks;
  int runs;
  std::vector<std::string> further_keys = {};
};

void PrintTo(const Case& c, std::ostream* out) {
  *out << c.title;
}

class Bench : public testing::TestWithParam<Case> {};

TEST_P(Bench, PrintsOneJsonObjectWithTheKeysThatWerePromised) {
  std::vector<std::string> args = GetParam().args;
  args.emplace_back("--json");
  const Outcome outcome = bench(args);
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const nlohmann::json line = only_line(outcome.out);
  EXPECT_EQ(line.at("name"), GetParam().name);
  EXPECT_EQ(line.at("ranks"), GetParam().ranks);
  EXPECT_EQ(line.at("runs"), GetParam().runs);
  const double median = line.at("median_ms");
  EXPECT_GT(median, 0);
  EXPECT_LE(line.at("min_ms"), median);
  EXPECT_GE(line.at("max_ms"), median);
  for (const std::string& key : GetParam().further_keys) {
    EXPECT_TRUE(line.contains(key) && line.at(key).is_number()) << key << " in " << line;
  }
}

std::vector<Case> collective_cases() {
  std::vector<Case> cases;
  for (const std::string op :
       {"all_reduce", "reduce_scatter", "all_gather", "broadcast", "all_to_all", "barrier"}) {
    for (const std::string memory : {"symmetric", "ordinary"}) {
      cases.push_back({op + "_" + memory,
                       {"collective", "--op", op, "--bytes", "4096", "-n", "2", "--memory", memory,
                        "--runs", "3", "--warmup", "1", "--transport", "shm"},
                       "collective." + op,
                       2,
                       3,
                       {"bytes"}});
    }
  }
  return cases;
}

std::vector<Case> other_cases() {
  const std::vector<std::string> training = {"exposed_comm_ms", "peak_bytes", "buckets"};
  const std::vector<std::string> tiny = {"--model", "mlp:8-8-4", "--batch",  "4",
                                         "--steps", "2",         "--warmup", "1"};
  const auto train = [&](const std::string& title, std::vector<std::string> more,
                         const std::string& name, int ranks) {
    std::vector<std::string> args = {"train"};
    args.insert(args.end(), tiny.begin(), tiny.end());
    args.insert(args.end(), more.begin(), more.end());
    return Case{title, args, name, ranks, 2, training};
  };
  return {
      train("train_ddp", {"-n", "2"}, "train.ddp", 2),
      train("train_alone", {"-n", "2", "--strategy", "none"}, "train.none", 2),
      train("train_one_rank", {"-n", "1", "--optimizer", "adamw"}, "train.ddp", 1),
      train("train_options",
            {"-n", "2", "--optimizer", "adam", "--bucket-cap-mb", "0.001", "--last-bucket-cap-mb",
             "0", "--no-overlap", "--no-bucket-view"},
            "train.ddp", 2),
      {"train_cnn",
       {"train", "--model", "cnn", "--batch", "2", "--steps", "1", "--warmup", "0", "-n", "2"},
       "train.ddp",
       2,
       1,
       training},
      {"overhead",
       {"overhead", "--parameters", "5", "--elements", "3", "--runs", "2", "-n", "2"},
       "overhead",
       2,
       2,
       {"added_us_per_parameter", "without_ms"}},
      {"start", {"start", "--runs", "2", "--warmup", "0", "-n", "2"}, "start", 2, 2},
      {"dtype_busy",
       {"collective", "--dtype", "bf16", "--bytes", "100", "--runs", "1", "-n", "3", "--busy"},
       "collective.all_reduce",
       3,
       1},
  };
}

std::string title(const testing::TestParamInfo<Case>& info) {
  return info.param.title;
}

INSTANTIATE_TEST_SUITE_P(Collectives, Bench, testing::ValuesIn(collective_cases()), title);
INSTANTIATE_TEST_SUITE_P(Others, Bench, testing::ValuesIn(other_cases()), title);

TEST(BenchText, IsOneReadableLine) {
  const Outcome outcome = bench({"collective", "--bytes", "64", "--runs", "2", "-n", "2"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("all_reduce of 64 bytes of f32 in symmetric memory, 2 ranks"));
}

TEST(BenchUnderALauncher, JoinsTheRanksThatAreThere) {
  const Outcome outcome = bench({"collective", "--bytes", "64", "--runs", "2"},
                                {kCohort, "run", "-n", "3", "--no-pin"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("3 ranks"));
}

struct Refusal {
  std::string title;
  std::vector<std::string> args;
  std::string says;
};

void PrintTo(const Refusal& r, std::ostream* out) {
  *out << r.title;
}

class BenchRefuses : public testing::TestWithParam<Refusal> {};

TEST_P(BenchRefuses, WithAMessageAndExitCodeTwo) {
  const Outcome outcome = bench(GetParam().args);
  EXPECT_EQ(outcome.code, 2) << outcome.err;
  EXPECT_THAT(outcome.err, HasSubstr(GetParam().says));
  EXPECT_EQ(outcome.out, "");
}

INSTANTIATE_TEST_SUITE_P(
    Options, BenchRefuses,
    testing::Values(Refusal{"nothing", {}, "no benchmark was named"},
                    Refusal{"unknown_benchmark", {"speed"}, "speed"},
                    Refusal{"unknown_operation", {"collective", "--op", "reduce"}, "--op"},
                    Refusal{"negative_bytes", {"collective", "--bytes=-1"}, "--bytes"},
                    Refusal{"unknown_dtype", {"collective", "--dtype", "f8"}, "'f8'"},
                    Refusal{"unknown_memory", {"collective", "--memory", "gpu"}, "--memory"},
                    Refusal{"no_ranks", {"collective", "-n", "0"}, "--ranks"},
                    Refusal{"no_runs", {"collective", "--runs", "0"}, "--runs"},
                    Refusal{"unknown_model", {"train", "--model", "gpt"}, "'gpt'"},
                    Refusal{"bad_widths", {"train", "--model", "mlp:784-x"}, "784-x"},
                    Refusal{"no_batch", {"train", "--batch", "0"}, "--batch"},
                    Refusal{"unknown_strategy", {"train", "--strategy", "fsdp"}, "--strategy"},
                    Refusal{"no_bucket", {"train", "--bucket-cap-mb", "0"}, "--bucket-cap-mb"},
                    Refusal{"no_parameters", {"overhead", "--parameters", "0"}, "--parameters"}),
    [](const testing::TestParamInfo<Refusal>& info) { return info.param.title; });

}  // namespace
}  // namespace cohort::tools
