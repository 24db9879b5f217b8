#include "tools/run_options.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <map>

#include "cohort/core/error.h"
#include "tools/commands.h"

extern char** environ;  // NOLINT: POSIX names it

namespace cohort::tools {
namespace {

// More ranks on one node than any has cores or devices for; a larger number is a mistake.
constexpr int kMaxRanksPerNode = 4096;
constexpr int kMaxNodes = 65536;

enum class Found { no, not_executable, yes };

Found look_at(const std::string& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return Found::no;
  if (!S_ISREG(status.st_mode) || ::access(path.c_str(), X_OK) != 0) return Found::not_executable;
  return Found::yes;
}

}  // namespace

void validate(const RunOptions& options) {
  check(options.ranks >= 1 && options.ranks <= kMaxRanksPerNode, "[run] -n is ", options.ranks,
        "; a node has 1 to ", kMaxRanksPerNode, " ranks");
  check(options.nodes >= 1 && options.nodes <= kMaxNodes, "[run] --nnodes is ", options.nodes,
        "; a job has 1 to ", kMaxNodes, " nodes");
  check(options.node_rank >= 0 && options.node_rank < options.nodes, "[run] --node-rank is ",
        options.node_rank, ", outside a job of ", options.nodes, " nodes");
  check(options.master_port >= 0 && options.master_port <= 65535, "[run] --master-port is ",
        options.master_port, "; a port is 1 to 65535, or 0 to let the system pick");
  check(options.grace_seconds >= 0 && options.grace_seconds <= 1e6, "[run] --grace is ",
        options.grace_seconds, "; it is 0 to 1000000 seconds");
  check(options.threads_per_rank >= 0 && options.threads_per_rank <= 65536,
        "[run] --threads-per-rank is ", options.threads_per_rank, "; it is 1 to 65536");
  check(!options.program.empty(), "[run] no program was given; cohort run -n 2 program args...");
  check(!options.program.front().starts_with('-'), "[run] unknown option ", options.program.front(),
        "; see cohort run --help, and put -- before a program whose name starts with -");
  if (options.nodes > 1) {
    check(!options.master_addr.empty(),
          "[run] --nnodes needs --master-addr, the address of node rank 0");
    check(options.master_port != 0,
          "[run] --nnodes needs --master-port, a free port of node rank 0");
    const char* secret = std::getenv("COHORT_JOB_SECRET");
    check(secret && *secret,
          "[run] --nnodes needs COHORT_JOB_SECRET, one random value on all nodes, so that they "
          "recognise each other");
  }
}

std::string find_program(const std::string& name, int& exit_code) {
  exit_code = kExitNotFound;
  if (name.empty()) return {};
  std::vector<std::string> candidates;
  if (name.find('/') != std::string::npos) {
    candidates.push_back(name);
  } else {
    const char* path = std::getenv("PATH");
    std::string rest = path ? path : "/usr/local/bin:/usr/bin:/bin";
    while (true) {
      const std::size_t colon = rest.find(':');
      const std::string folder = rest.substr(0, colon);
      candidates.push_back((folder.empty() ? "." : folder) + "/" + name);
      if (colon == std::string::npos) break;
      rest.erase(0, colon + 1);
    }
  }
  for (const std::string& candidate : candidates) {
    const Found found = look_at(candidate);
    if (found == Found::yes) return candidate;
    if (found == Found::not_executable) exit_code = kExitNotExecutable;
  }
  return {};
}

std::vector<std::string> rank_environment(const RunOptions& options, const JobIdentity& job,
                                          int local_rank) {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry; ++entry) {
    const std::string variable(*entry);
    const std::size_t equals = variable.find('=');
    if (equals != std::string::npos)
      variables[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  const std::string rank = std::to_string(options.global_rank(local_rank));
  const std::string world = std::to_string(options.world_size());
  const std::string node = std::to_string(options.node_rank);
  const std::string nodes = std::to_string(options.nodes);
  variables["RANK"] = rank;
  variables["WORLD_SIZE"] = world;
  variables["LOCAL_RANK"] = std::to_string(local_rank);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(options.ranks);
  variables["GROUP_RANK"] = node;
  variables["GROUP_WORLD_SIZE"] = nodes;
  variables["ROLE_NAME"] = "default";
  variables["ROLE_RANK"] = rank;
  variables["ROLE_WORLD_SIZE"] = world;
  variables["MASTER_ADDR"] = options.master_addr.empty() ? "127.0.0.1" : options.master_addr;
  variables["MASTER_PORT"] = std::to_string(job.port);
  variables["TORCHELASTIC_RUN_ID"] = job.id;
  variables["TORCHELASTIC_RESTART_COUNT"] = "0";
  variables["TORCHELASTIC_MAX_RESTARTS"] = "0";
  variables["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  variables["COHORT_STORE_HOSTED"] = "1";
  variables["COHORT_JOB_SECRET"] = job.secret;
  if (!options.trace_dir.empty()) variables["COHORT_TRACE_DIR"] = options.trace_dir;
  // Meant for us, and already followed: a rank must not follow them again.
  variables.erase("COHORT_STORE_PORT");
  variables.erase("COHORT_BIND_ADDR");
  if (options.threads_per_rank > 0) {
    variables["OMP_NUM_THREADS"] = std::to_string(options.threads_per_rank);
  } else {
    variables.try_emplace("OMP_NUM_THREADS", "1");
  }
  std::vector<std::string> environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(str(name, "=", value));
  return environment;
}

}  // namespace cohort::tools
