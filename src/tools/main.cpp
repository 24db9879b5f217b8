#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"
#include "tools/commands.h"

namespace cohort::tools {
namespace {

// Every subcommand, in the order in which the help lists them.
constexpr Command kCommands[] = {
    {"run", "Start a program as the ranks of a job", define_run},
    {"bench", "Measure collectives and training steps", define_bench},
    {"trace", "Read what the ranks of a job have recorded", define_trace},
};

// Removes a "--" between the options and the program of a command that starts one; the parser would
// take it for the end of the subcommand. A "--" behind the program's name is the program's.
void drop_separator(const CLI::App& sub, std::vector<std::string>& args) {
  if (!sub.get_prefix_command()) return;
  for (std::size_t i = 1; i < args.size() && args[i].starts_with('-'); ++i) {
    if (args[i] == "--") {
      args.erase(args.begin() + static_cast<std::ptrdiff_t>(i));
      return;
    }
    // An option that is spelled out without "=" has its value in the next argument.
    const CLI::Option* option = sub.get_option_no_throw(args[i]);
    if (option && option->get_items_expected_max() > 0) ++i;
  }
}

int main(int argc, char** argv) {
  CLI::App app("Data-parallel training: starts and examines jobs", "cohort");
  app.require_subcommand(1);
  std::vector<std::pair<CLI::App*, std::function<int()>>> actions;
  for (const Command& command : kCommands) {
    CLI::App* sub = app.add_subcommand(command.name, command.description);
    actions.emplace_back(sub, command.define(*sub));
  }
  std::vector<std::string> args(argv + 1, argv + argc);
  if (!args.empty() && !args.front().starts_with('-')) {
    const auto chosen = std::find_if(actions.begin(), actions.end(), [&](const auto& action) {
      return action.first->get_name() == args.front();
    });
    if (chosen == actions.end()) {
      std::cerr << "cohort: there is no subcommand '" << args.front() << "'\n\n" << app.help();
      return kExitUsage;
    }
    drop_separator(*chosen->first, args);
  }
  try {
    std::reverse(args.begin(), args.end());  // the parser takes them from the back
    app.parse(std::move(args));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // help was asked for
    std::cerr << "cohort: " << error.what() << "\n\n";
    if (app.get_subcommands().empty()) {
      std::cerr << app.help();
    } else {
      std::cerr << "See cohort " << app.get_subcommands().front()->get_name() << " --help\n";
    }
    return kExitUsage;
  }
  for (const auto& [sub, action] : actions) {
    if (!sub->parsed()) continue;
    try {
      return action();
    } catch (const InvalidArgument& error) {
      std::cerr << "cohort: " << error.what() << "\n";
      return kExitUsage;
    } catch (const std::exception& error) {
      std::cerr << "cohort: " << error.what() << "\n";
      return kExitFailure;
    }
  }
  return kExitUsage;
}

}  // namespace
}  // namespace cohort::tools

int main(int argc, char** argv) {
  return cohort::tools::main(argc, argv);
}
