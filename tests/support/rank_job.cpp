#include "support/rank_job.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "cohort/core/error.h"

namespace cohort::test {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr Milliseconds kCleanup{15'000};  // outlives a child that a rank forked

bool any_bound(const std::vector<std::string>& names) {
  std::ifstream file("/proc/net/unix");
  const std::string bound((std::istreambuf_iterator<char>(file)), {});
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return bound.find(name) != std::string::npos;
  });
}

}  // namespace

RankJob::RankJob(int size, const std::vector<std::string>& program,
                 const std::vector<std::string>& environment) {
  for (int rank = 0; rank < size; ++rank) {
    std::vector<std::string> variables = {
        str("RANK=", rank),        str("WORLD_SIZE=", size),
        str("LOCAL_RANK=", rank),  str("LOCAL_WORLD_SIZE=", size),
        "MASTER_ADDR=127.0.0.1",   str("MASTER_PORT=", server_.port()),
        "COHORT_STORE_HOSTED=1",   "TORCHELASTIC_RUN_ID=process-test",
        "COHORT_JOB_SECRET=secret"};
    variables.insert(variables.end(), environment.begin(), environment.end());
    ranks_.push_back(std::make_unique<ChildProcess>(program, variables));
  }
}

RankJob::~RankJob() {
  const std::vector<std::string> sockets = socket_names();
  ranks_.clear();
  EXPECT_TRUE(eventually([&] { return !any_bound(sockets); }, kCleanup));
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("cohort")));
  }
}

void RankJob::wait_until_running() {
  for (const auto& rank : ranks_) {
    ASSERT_TRUE(rank->wait_for("running", kStart)) << rank->out() << rank->err();
  }
}

std::optional<int> RankJob::code(std::size_t rank, Milliseconds timeout) {
  const auto code = ranks_[rank]->wait(timeout);
  ranks_[rank]->wait_for_end_of_output(Milliseconds(1'000));
  return code;
}

std::vector<std::string> RankJob::socket_names() {
  comm::TcpStore store({.port = server_.port(), .credentials = {"process-test", "secret"}});
  std::vector<std::string> names;
  for (std::size_t rank = 0; rank < size(); ++rank) {
    const auto address = store.try_get(str("init/0/shm/address/", rank));
    if (address) names.push_back(address->substr(0, address->find(' ')));
  }
  return names;
}

}  // namespace cohort::test
