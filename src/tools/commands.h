#pragma once

#include <CLI/CLI.hpp>
#include <functional>

namespace cohort::tools {

// A subcommand of `cohort`: `define` adds its options to `app` and returns what runs it, once the
// command line has been read, and gives the exit code.
struct Command {
  const char* name;
  const char* description;
  std::function<int()> (*define)(CLI::App& app);
};

// Exit codes of the command itself; `cohort run` otherwise gives those of the ranks.
inline constexpr int kExitFailure = 1;  // something could not be done
inline constexpr int kExitUsage = 2;    // the command line makes no sense
inline constexpr int kExitDesync = 3;   // `cohort trace desync` found one
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;
inline constexpr int kExitSignal = 128;  // plus the signal's number

std::function<int()> define_run(CLI::App& app);
std::function<int()> define_bench(CLI::App& app);
std::function<int()> define_trace(CLI::App& app);

}  // namespace cohort::tools
