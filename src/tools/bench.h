#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/deadline.h"

namespace cohort::tools {

// What every benchmark of `cohort bench` is told.
struct BenchOptions {
  int ranks = 2;
  int runs = 50;
  int warmup = 10;
  bool json = false;
  std::string transport = "auto";
  // Where a rank writes its results, when another `cohort bench` started it; -1: standard output.
  int result_fd = -1;
};

// Adds -n, --json, --transport and, hidden, --result-fd.
void add_common_options(CLI::App& app, BenchOptions& options);
// Adds `name` (--runs, or --steps) and --warmup.
void add_run_options(CLI::App& app, BenchOptions& options, const std::string& name);

// The timed runs of one rank, in milliseconds, and further values that are reported with them.
struct Measurement {
  std::string name;  // "collective.all_reduce"
  std::string what;  // for the readable line: "all_reduce of 26214400 bytes in symmetric memory"
  std::vector<double> ms;
  std::vector<std::pair<std::string, double>> values = {};
};

// Median, mean of the middle two for an even count. Not empty.
double median(std::vector<double> values);

double ms_since(Clock::time_point start);

// Collective. Writes one line about `mine` on rank 0: times are of the rank with the greatest
// median, every other value is the greatest over the ranks.
void report(comm::ProcessGroup& group, const BenchOptions& options, const Measurement& mine);
// The same for what one process measured about `ranks` ranks. Not collective.
void report(const BenchOptions& options, const Measurement& measured, int ranks);

// Runs `body` as a rank: in this process when a launcher started it or one rank is enough,
// otherwise in `options.ranks` processes that `cohort run` starts with this process's own
// arguments. The exit code.
using BenchBody = std::function<void(const std::shared_ptr<comm::ProcessGroup>& group)>;
int run_bench(const BenchOptions& options, const BenchBody& body);

// True in a process that a launcher started.
bool is_rank();

// `cohort run -n ranks` of this program with this process's arguments and --result-fd.
struct Launched {
  int exit_code = 0;
  std::string results;  // what the ranks wrote to their result_fd
};
Launched launch_ranks(int ranks);

// Appends `line` and a line feed to where results go; whole lines of several ranks do not mix.
void write_result(const BenchOptions& options, const std::string& line);

// Each adds its options to `app` and returns what runs it.
std::function<int()> define_bench_collective(CLI::App& app);
std::function<int()> define_bench_train(CLI::App& app);
std::function<int()> define_bench_overhead(CLI::App& app);
std::function<int()> define_bench_start(CLI::App& app);

}  // namespace cohort::tools
