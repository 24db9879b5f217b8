#include "cohort/comm/launch_env.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <ostream>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

// More ranks than any machine has; a larger number is a mistake.
constexpr int kMaxWorldSize = 1 << 20;

// Reads variables and says which one is wrong.
class Variables {
 public:
  explicit Variables(const LaunchEnv::Environment& environment) : environment_(environment) {}

  std::optional<std::string> text(const std::string& name) const { return environment_(name); }

  bool has(const std::string& name) const { return text(name).has_value(); }

  std::optional<int> number(const std::string& name, int low, int high) const {
    const auto value = text(name);
    if (!value) return std::nullopt;
    int result = 0;
    const char* end = value->data() + value->size();
    const auto [stop, error] = std::from_chars(value->data(), end, result);
    if (error != std::errc{} || stop != end || value->empty()) {
      throw InvalidArgument(str("[launch] ", name, " is '", *value, "', which is no number"));
    }
    if (result < low || result > high) {
      throw InvalidArgument(
          str("[launch] ", name, " is ", *value, ", which is outside ", low, " to ", high));
    }
    return result;
  }

  // `name`, which must be there because `because` is.
  int needed(const std::string& name, const std::string& because, int low, int high) const {
    const auto value = number(name, low, high);
    if (!value) {
      throw InvalidArgument(str("[launch] ", because, " is set (to '", text(because).value_or(""),
                                "') but ", name, " is not; set both or neither"));
    }
    return *value;
  }

 private:
  const LaunchEnv::Environment& environment_;
};

bool is_loopback(const std::string& address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

struct Names {
  std::string rank, size, local_rank, local_size;
};

// Rank and size, and their local counterparts where the launcher tells them.
void read_ranks(const Variables& variables, const Names& names, LaunchEnv& env) {
  // Whichever is there asks for the other.
  const std::string because = variables.has(names.rank) ? names.rank : names.size;
  env.world_size = variables.needed(names.size, because, 1, kMaxWorldSize);
  env.rank = variables.needed(names.rank, because, 0, env.world_size - 1);
  if (!variables.has(names.local_rank) && !variables.has(names.local_size)) {
    // Only a loopback master shows that all ranks share this host; otherwise one rank per host, as
    // in a container each, is what is set up by hand.
    const bool one_host = is_loopback(variables.text("MASTER_ADDR").value_or(""));
    env.local_rank = one_host ? env.rank : 0;
    env.local_world_size = one_host ? env.world_size : 1;
    return;
  }
  const std::string local_because =
      variables.has(names.local_rank) ? names.local_rank : names.local_size;
  env.local_world_size = variables.needed(names.local_size, local_because, 1, env.world_size);
  env.local_rank = variables.needed(names.local_rank, local_because, 0, env.local_world_size - 1);
}

void require_master(const Variables& variables, const LaunchEnv& env, const char* name,
                    const char* how) {
  if (env.world_size > 1 && !variables.has(name)) {
    throw InvalidArgument(
        str("[launch] the world has ", env.world_size, " ranks but ", name, " is not set; ", how));
  }
}

void read_torchrun(const Variables& variables, LaunchEnv& env) {
  env.launcher = Launcher::torchrun;
  for (const char* name : {"LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"}) {
    if (variables.has(name)) variables.needed("RANK", name, 0, kMaxWorldSize);
  }
  read_ranks(variables, {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}, env);
  env.group_rank =
      variables.number("GROUP_RANK", 0, kMaxWorldSize).value_or(env.rank / env.local_world_size);
  require_master(variables, env, "MASTER_ADDR", "give the address of rank 0's host");
  require_master(variables, env, "MASTER_PORT", "give a free port of rank 0's host");
  env.job_id = variables.text("TORCHELASTIC_RUN_ID").value_or("");
  env.restart_count = variables.number("TORCHELASTIC_RESTART_COUNT", 0, kMaxWorldSize).value_or(0);
}

// MPI launchers name no master: on one host it is this host; between hosts the user must say.
void derive_master(const Variables& variables, LaunchEnv& env, const std::string& job,
                   const char* how) {
  if (env.local_world_size < env.world_size) require_master(variables, env, "MASTER_ADDR", how);
  env.group_rank = env.rank / env.local_world_size;
  env.job_id = job;
  env.master_port = derived_port(job);
}

void read_open_mpi(const Variables& variables, LaunchEnv& env) {
  env.launcher = Launcher::open_mpi;
  read_ranks(variables,
             {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
              "OMPI_COMM_WORLD_LOCAL_SIZE"},
             env);
  // The namespace names the job in releases 4 and 5, the other in 4 and earlier.
  std::string job = "mpirun";
  for (const char* name : {"OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE"}) {
    if (const auto value = variables.text(name)) job = "mpirun-" + *value;
  }
  derive_master(variables, env, job, "start it as mpirun -x MASTER_ADDR=<host of rank 0>");
}

void read_pmi(const Variables& variables, LaunchEnv& env) {
  env.launcher = Launcher::pmi;
  read_ranks(variables, {"PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"}, env);
  const std::string job = "pmi-" + variables.text("PMI_JOBID").value_or("");
  derive_master(variables, env, job, "start it as mpiexec -env MASTER_ADDR <host of rank 0>");
}

// "4(x2),3" is 4, 4 and 3 tasks on nodes 0, 1 and 2.
std::optional<int> tasks_of_node(const std::string& tasks_per_node, int node) {
  const char* at = tasks_per_node.data();
  const char* end = at + tasks_per_node.size();
  while (at < end) {
    int tasks = 0;
    int times = 1;
    auto parsed = std::from_chars(at, end, tasks);
    if (parsed.ec != std::errc{} || tasks < 1) return std::nullopt;
    at = parsed.ptr;
    if (end - at >= 4 && at[0] == '(' && at[1] == 'x') {
      parsed = std::from_chars(at + 2, end, times);
      if (parsed.ec != std::errc{} || times < 1 || parsed.ptr == end) return std::nullopt;
      at = parsed.ptr + 1;  // the closing parenthesis
    }
    if (node < times) return tasks;
    node -= times;
    if (at < end && *at++ != ',') return std::nullopt;
  }
  return std::nullopt;
}

void read_slurm(const Variables& variables, LaunchEnv& env) {
  env.launcher = Launcher::slurm;
  const char* const because = "SLURM_STEP_NODELIST";
  const char* const size =
      variables.has("SLURM_STEP_NUM_TASKS") ? "SLURM_STEP_NUM_TASKS" : "SLURM_NTASKS";
  env.world_size = variables.needed(size, because, 1, kMaxWorldSize);
  env.rank = variables.needed("SLURM_PROCID", because, 0, env.world_size - 1);
  env.local_rank = variables.needed("SLURM_LOCALID", because, 0, env.world_size - 1);
  env.group_rank = variables.needed("SLURM_NODEID", because, 0, kMaxWorldSize);
  const std::string tasks = variables.text("SLURM_STEP_TASKS_PER_NODE").value_or("");
  const auto local = tasks_of_node(tasks, env.group_rank);
  if (local && (*local <= env.local_rank || *local > env.world_size)) {
    throw InvalidArgument(str("[launch] SLURM_STEP_TASKS_PER_NODE is '", tasks,
                              "' but SLURM_NODEID is ", env.group_rank, " and SLURM_LOCALID is ",
                              env.local_rank));
  }
  env.local_world_size = local.value_or(env.local_rank + 1);
  env.master_addr = first_slurm_host(*variables.text(because));
  // Two steps of one job may run at once, so the step belongs to the name.
  env.job_id = "slurm-" + variables.text("SLURM_JOB_ID").value_or("") + "." +
               variables.text("SLURM_STEP_ID").value_or("0");
  env.master_port = derived_port(env.job_id);
}

std::uint16_t port_number(int port) {
  return static_cast<std::uint16_t>(port);
}

// Where the store is, in all families: what is said explicitly counts before what was derived.
void read_store(const Variables& variables, LaunchEnv& env) {
  const auto flag = [&](const char* name) {
    const std::string value = variables.text(name).value_or("");
    return value == "1" || value == "True" || value == "true";
  };
  if (const auto address = variables.text("MASTER_ADDR")) env.master_addr = *address;
  if (const auto port = variables.number("MASTER_PORT", 1, 65535)) {
    env.master_port = port_number(*port);
    // torchrun's agent holds MASTER_PORT itself, with another protocol: ours is the next one.
    if (flag("TORCHELASTIC_USE_AGENT_STORE")) {
      env.master_port = port_number(*port == 65535 ? *port - 1 : *port + 1);
    }
  }
  if (const auto port = variables.number("COHORT_STORE_PORT", 1, 65535)) {
    env.master_port = port_number(*port);
  }
  env.store_hosted = flag("COHORT_STORE_HOSTED");
  env.bind_addr = variables.text("COHORT_BIND_ADDR").value_or("");
  env.secret = variables.text("COHORT_JOB_SECRET").value_or("");
}

}  // namespace

std::ostream& operator<<(std::ostream& out, Launcher launcher) {
  switch (launcher) {
    case Launcher::alone:
      return out << "alone";
    case Launcher::torchrun:
      return out << "torchrun";
    case Launcher::open_mpi:
      return out << "Open MPI";
    case Launcher::pmi:
      return out << "PMI";
    case Launcher::slurm:
      return out << "Slurm";
  }
  return out << "unknown launcher";
}

LaunchEnv LaunchEnv::from_environment(const Environment& environment) {
  const Variables variables(environment);
  const auto any = [&](std::initializer_list<const char*> names) {
    return std::any_of(names.begin(), names.end(),
                       [&](const char* name) { return variables.has(name); });
  };
  LaunchEnv env;
  if (any({"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"})) {
    read_torchrun(variables, env);
  } else if (any({"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"})) {
    read_open_mpi(variables, env);
  } else if (any({"PMI_RANK", "PMI_SIZE"})) {
    read_pmi(variables, env);
  } else if (any({"SLURM_STEP_NODELIST"})) {
    read_slurm(variables, env);
  } else {
    return env;
  }
  read_store(variables, env);
  return env;
}

LaunchEnv LaunchEnv::from_environment() {
  return from_environment([](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value ? std::optional<std::string>(value) : std::nullopt;
  });
}

std::uint16_t derived_port(const std::string& job) {
  // FNV-1a: the same on every host and in every build, unlike std::hash.
  std::uint32_t hash = 2166136261u;
  for (const char c : job) hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  return static_cast<std::uint16_t>(10000 + hash % 20000);
}

std::string first_slurm_host(const std::string& node_list) {
  const std::size_t end = node_list.find_first_of("[,");
  std::string host = node_list.substr(0, end);
  if (end != std::string::npos && node_list[end] == '[') {
    const std::size_t number_end = node_list.find_first_of("-,]", end + 1);
    const std::size_t close = node_list.find(']', end);
    if (number_end != std::string::npos && close != std::string::npos) {
      host += node_list.substr(end + 1, number_end - end - 1);
      const std::size_t next = node_list.find(',', close);
      host += node_list.substr(close + 1, next == std::string::npos ? next : next - close - 1);
    } else {
      host.clear();
    }
  }
  check(!host.empty(), "[launch] SLURM_STEP_NODELIST is '", node_list, "', which names no host");
  return host;
}

}  // namespace cohort::comm
