#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cohort/comm/store.h"
#include "support/child_process.h"

namespace cohort::test {

// The ranks of a program on this host, started as a launcher would start them, with the job's store
// in this process. The destructor kills what still runs, and expects that nothing is left: no
// socket, no file in /dev/shm.
class RankJob {
 public:
  // Generous for a loaded machine; what is promised is 5 seconds.
  static constexpr Milliseconds kPromptly{5'000};
  static constexpr Milliseconds kStart{30'000};

  RankJob(int size, const std::vector<std::string>& program,
          const std::vector<std::string>& environment = {});
  ~RankJob();
  RankJob(const RankJob&) = delete;
  RankJob& operator=(const RankJob&) = delete;

  ChildProcess& operator[](std::size_t rank) { return *ranks_[rank]; }
  std::size_t size() const { return ranks_.size(); }
  // Until each rank has printed "running".
  void wait_until_running();
  // The exit code of `rank`, and what it said is then in err().
  std::optional<int> code(std::size_t rank, Milliseconds timeout = kPromptly);

 private:
  // Those that the ranks published.
  std::vector<std::string> socket_names();

  comm::StoreServer server_{{.credentials = {"process-test", "secret"}}};
  std::vector<std::unique_ptr<ChildProcess>> ranks_;
};

}  // namespace cohort::test
