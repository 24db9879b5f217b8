#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "tools/commands.h"
#include "tools/trace_desync.h"
#include "tools/trace_dump.h"

namespace cohort::tools {

std::function<int()> define_trace(CLI::App& app) {
  const auto paths = std::make_shared<std::vector<std::string>>();
  app.require_subcommand(1);
  CLI::App* desync = app.add_subcommand(
      "desync", "Say which rank called what instead, from the flight records of all ranks");
  desync->add_option("DUMPS", *paths, "Files, or folders with flight-rank*.json")->required();
  return [paths] {
    const Verdict verdict = explain(read_dumps(*paths));
    std::cout << verdict.sentence << "\n";
    return verdict.desync ? kExitDesync : 0;
  };
}

}  // namespace cohort::tools
