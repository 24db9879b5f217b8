#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "tools/bench.h"
#include "tools/commands.h"

namespace cohort::tools {
namespace {

constexpr Command kBenchmarks[] = {
    {"collective", "One collective, from the call to its end", define_bench_collective},
    {"train", "Whole training steps on synthetic data", define_bench_train},
    {"overhead", "What DDP adds to the backward of many tiny parameters", define_bench_overhead},
    {"start", "From `cohort run` to the end of the first training step", define_bench_start},
};

}  // namespace

std::function<int()> define_bench(CLI::App& app) {
  // None is told by us: the parser's message for a wrong name would be that one is missing.
  app.require_subcommand(0, 1);
  app.footer(
      "Times are medians over runs after a warm-up, of the rank with the greatest one. The ranks "
      "are started as by `cohort run`, unless a launcher has started this process as one.");
  std::vector<std::pair<CLI::App*, std::function<int()>>> actions;
  for (const Command& benchmark : kBenchmarks) {
    CLI::App* sub = app.add_subcommand(benchmark.name, benchmark.description);
    actions.emplace_back(sub, benchmark.define(*sub));
  }
  return [actions] {
    for (const auto& [sub, action] : actions) {
      if (sub->parsed()) return action();
    }
    std::string names;
    for (const Command& benchmark : kBenchmarks)
      names += str(names.empty() ? "" : ", ", benchmark.name);
    throw InvalidArgument("[bench] no benchmark was named; there are " + names);
  };
}

}  // namespace cohort::tools
