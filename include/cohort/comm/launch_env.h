#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <optional>
#include <string>

namespace cohort::comm {

// Who started this process, as told by its environment.
enum class Launcher { alone, torchrun, open_mpi, pmi, slurm };

std::ostream& operator<<(std::ostream& out, Launcher launcher);

// A process's place in its job, read from the variables that launchers set.
//
// The families are asked in this order, and the first that is present decides alone:
//   1. torchrun's and `cohort run`'s: RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK
//   2. Open MPI's: OMPI_COMM_WORLD_RANK, _SIZE, _LOCAL_RANK, _LOCAL_SIZE
//   3. PMI's (MPICH, Intel MPI): PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS
//   4. srun's: SLURM_PROCID with SLURM_STEP_NODELIST (a batch script that starts a program without
//      srun has no step, and its program is alone)
// With none of them the process is a world of one. MASTER_ADDR and MASTER_PORT are read in every
// family and count before what is derived; docs/launcher.md lists every variable.
struct LaunchEnv {
  Launcher launcher = Launcher::alone;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // among the ranks of this host, as the launcher sees it
  int local_world_size = 1;  // ranks of this host
  int group_rank = 0;        // number of this host
  std::string master_addr = "127.0.0.1";
  std::uint16_t master_port = 0;  // of the job's store; 0 only in a world of one
  std::string bind_addr = {};     // where rank 0 listens, when not at master_addr; may be empty
  std::string job_id = {};
  std::string secret = {};    // empty: the job has none
  bool store_hosted = false;  // the launcher hosts the store; otherwise rank 0 does
  int restart_count = 0;

  // The value of a variable, or nothing. Tests pass their own.
  using Environment = std::function<std::optional<std::string>(const std::string& name)>;

  // Throws InvalidArgument, naming the variable and its value, for what is half set, no number, out
  // of range or contradictory.
  static LaunchEnv from_environment(const Environment& environment);
  // From this process's environment. Not to be called while another thread changes it.
  static LaunchEnv from_environment();
};

// The port of a job that named none, from 10000 to 29999, below the ports that systems hand out by
// themselves (from 32768 on Linux). Equal for equal `job`.
std::uint16_t derived_port(const std::string& job);

// The first host of a Slurm node list: "gpu[03-07,11],login" gives "gpu03".
std::string first_slurm_host(const std::string& node_list);

}  // namespace cohort::comm
