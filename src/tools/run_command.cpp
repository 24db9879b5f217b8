#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string_view>

#include "cohort/comm/store.h"
#include "cohort/core/error.h"
#include "comm/store_handshake.h"
#include "tools/commands.h"
#include "tools/run_cpus.h"
#include "tools/run_keeper.h"
#include "tools/run_output.h"
#include "tools/run_supervisor.h"

namespace cohort::tools {
namespace {

// What is passed on to the ranks, unless we were started with it ignored (nohup).
sigset_t forwarded_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    if (action.sa_handler != SIG_IGN) sigaddset(&set, number);
  }
  return set;
}

// Blocks what arrives through descriptors instead: our signals, SIGCHLD, and SIGPIPE, which shows
// as an error of write. Threads started later inherit this. Gives the mask from before, for the
// ranks.
sigset_t block_signals(sigset_t signals) {
  sigset_t before;
  sigaddset(&signals, SIGCHLD);
  sigaddset(&signals, SIGPIPE);
  ::sigprocmask(SIG_BLOCK, &signals, &before);
  return before;
}

UniqueFd open_log(const RunOptions& options, int local_rank) {
  const auto path =
      std::filesystem::path(options.log_dir) / str("rank", options.global_rank(local_rank), ".log");
  UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0666));
  check<FileError>(static_cast<bool>(fd), "[run] --log-dir: cannot write ", path.string(), ": ",
                   std::strerror(errno));
  return fd;
}

UniqueFd rank_pipe(RankOutput& output, int rank, bool is_error) {
  int ends[2];
  check<Error>(::pipe2(ends, O_CLOEXEC) == 0, "[run] no pipe for rank ", rank, ": ",
               std::strerror(errno), "; see ulimit -n");
  ::fcntl(ends[0], F_SETFL, O_NONBLOCK);
  output.add(UniqueFd(ends[0]), rank, is_error);
  return UniqueFd(ends[1]);
}

std::vector<RankFiles> rank_files(const RunOptions& options, RankOutput& output) {
  if (!options.log_dir.empty()) {
    std::error_code error;
    std::filesystem::create_directories(options.log_dir, error);
    check<FileError>(!error, "[run] --log-dir: cannot create ", options.log_dir, ": ",
                     error.message());
  }
  std::vector<RankFiles> files;
  for (int rank = 0; rank < options.ranks; ++rank) {
    if (!options.log_dir.empty()) {
      files.push_back({open_log(options, rank), {}});
    } else {
      const int global = options.global_rank(rank);
      UniqueFd out = rank_pipe(output, global, false);
      files.push_back({std::move(out), rank_pipe(output, global, true)});
    }
  }
  return files;
}

// Absolute, for ranks that change their folder, and without an earlier job's records of the ranks
// that this node starts, or of ranks that this job has not: they would be taken for this job's.
std::string make_trace_dir(const RunOptions& options) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(options.trace_dir, error);
  if (!error) std::filesystem::create_directories(path, error);
  check<FileError>(!error, "[run] --trace-dir: cannot create ", options.trace_dir, ": ",
                   error.message());
  constexpr std::string_view kPrefix = "flight-rank";
  for (const auto& entry : std::filesystem::directory_iterator(path)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with(kPrefix) || !name.ends_with(".json")) continue;
    const int rank = std::atoi(name.c_str() + kPrefix.size());
    const int first = options.global_rank(0);
    if ((rank >= first && rank < first + options.ranks) || rank >= options.world_size()) {
      std::filesystem::remove(entry.path(), error);
    }
  }
  return path;
}

comm::StoreServerOptions server_options(const RunOptions& options, const KeeperPlan& plan) {
  comm::StoreServerOptions server;
  if (!options.master_addr.empty()) server.bind_address = options.master_addr;
  if (!options.bind_addr.empty()) server.bind_address = options.bind_addr;
  server.port = static_cast<std::uint16_t>(options.master_port);
  server.credentials = {plan.job_id, plan.secret};
  return server;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

// Ranks on other nodes may need the store a little longer than ours: it stays until they have left,
// for the grace time at most, or until a signal.
void linger(const comm::StoreServer& server, const RunOptions& options, int signals) {
  const Deadline deadline = Deadline::after(options.grace());
  while (server.stats().authenticated > 0 && !deadline.passed()) {
    // The server tells nobody when a client leaves, so look again from time to time.
    const auto slice = Deadline::after(Milliseconds(20)).sooner(deadline);
    if (comm::poll_for(signals, POLLIN, slice)) return;
  }
}

int run(RunOptions options) {
  validate(options);
  int not_found = 0;
  const std::string program = find_program(options.program.front(), not_found);
  if (program.empty()) {
    std::cerr << "cohort run: " << options.program.front()
              << (not_found == kExitNotFound ? ": no such program" : ": is not executable") << "\n";
    return not_found;
  }
  if (options.bind_addr.empty()) options.bind_addr = variable("COHORT_BIND_ADDR");
  if (!options.trace_dir.empty()) options.trace_dir = make_trace_dir(options);

  RankOutput output;
  KeeperPlan plan;
  plan.options = options;
  plan.program = program;
  plan.secret = variable("COHORT_JOB_SECRET");
  if (plan.secret.empty()) plan.secret = comm::random_hex(32);
  plan.job_id = options.job_id;
  // One node makes up a name; several have to agree on one.
  if (plan.job_id.empty()) plan.job_id = options.nodes > 1 ? "cohort" : comm::random_hex(8);
  plan.files = rank_files(options, output);
  if (options.pin) plan.cpus = divide_cpus(options.ranks);
  const sigset_t forwarded = forwarded_signals();
  plan.rank_signal_mask = block_signals(forwarded);
  const UniqueFd signals(::signalfd(-1, &forwarded, SFD_CLOEXEC | SFD_NONBLOCK));

  // First the keeper, which forks, then the server, which has a thread, then the ranks, which need
  // its port. The server is declared first, so that it outlives the ranks.
  std::optional<comm::StoreServer> server;
  Keeper keeper(plan);
  if (options.node_rank == 0) server.emplace(server_options(options, plan));
  const auto port = server ? server->port() : static_cast<std::uint16_t>(options.master_port);
  const int code = Supervisor(options, keeper, output, signals.get()).run(port);
  if (server && options.nodes > 1) linger(*server, options, signals.get());
  return code;
}

}  // namespace

std::function<int()> define_run(CLI::App& app) {
  const auto options = std::make_shared<RunOptions>();
  app.footer("The program and its arguments follow the options: cohort run -n 2 ./train --lr 0.1");
  app.add_option("-n,--nproc-per-node", options->ranks, "Ranks on this node")
      ->capture_default_str();
  app.add_option("--nnodes", options->nodes, "Nodes of the job")->capture_default_str();
  app.add_option("--node-rank", options->node_rank, "This node's number, from 0")
      ->capture_default_str();
  app.add_option("--master-addr", options->master_addr,
                 "Address of node rank 0, where the store is (default 127.0.0.1)");
  app.add_option("--master-port", options->master_port,
                 "Port of the store; 0 lets the system pick one")
      ->capture_default_str();
  app.add_option("--bind-addr", options->bind_addr,
                 "Address on which the store listens, when not --master-addr");
  app.add_option("--job-id", options->job_id, "Name of the job (default: made up)");
  app.add_option("--log-dir", options->log_dir,
                 "Write each rank's output to rank<N>.log in this folder");
  app.add_option("--trace-dir", options->trace_dir,
                 "Let each rank write its flight record to flight-rank<N>.json in this folder when "
                 "it fails, ends, or gets SIGUSR1")
      ->type_name("FOLDER");
  app.add_option("--grace", options->grace_seconds,
                 "Seconds that ranks have to end after a failure or a signal")
      ->capture_default_str();
  app.add_option("--threads-per-rank", options->threads_per_rank,
                 "Set OMP_NUM_THREADS to this (default: keep it, or 1)");
  app.add_flag_callback(
      "--no-pin", [options] { options->pin = false; }, "Do not give each rank cores of its own");
  app.add_flag_callback(
      "--no-pid-namespace", [options] { options->isolate = false; },
      "Do not use a PID namespace even where that is permitted");
  app.prefix_command();
  return [options, &app] {
    options->program = app.remaining();
    return run(*options);
  };
}

}  // namespace cohort::tools
