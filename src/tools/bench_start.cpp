#include <algorithm>
#include <memory>
#include <sstream>
#include <string>

#include "cohort/comm/init.h"
#include "cohort/core/error.h"
#include "cohort/models/models.h"
#include "cohort/ops/ops.h"
#include "cohort/optim/optim.h"
#include "cohort/parallel/ddp.h"
#include "tools/bench.h"

namespace cohort::tools {
namespace {

constexpr std::int64_t kBatch = 64;

// A clock reading that all processes of the machine share (CLOCK_MONOTONIC).
std::int64_t nanoseconds(Clock::time_point at) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(at.time_since_epoch()).count();
}

// What a small training program does until its first step is done.
void first_step(const std::shared_ptr<comm::ProcessGroup>& group) {
  DDP ddp(models::make_mlp("784-512-256-10"), group, {.gradient_as_bucket_view = true});
  optim::SGD optimizer(ddp.parameters(), {.lr = 0.01, .momentum = 0.9});
  const Tensor targets = Tensor::zeros({kBatch}, {.dtype = DType::i64});
  const Tensor loss = cross_entropy(ddp(Tensor::randn({kBatch, 784})), targets);
  optimizer.zero_grad();
  loss.backward();
  optimizer.step();
}

int run_as_rank(const BenchOptions& options) {
  check(options.result_fd >= 0, "[bench] start launches its ranks itself; run it without launcher");
  return comm::run_main(0, nullptr, [&](int, char**) {
    const auto group = comm::init_from_env({.backend = options.transport});
    first_step(group);
    write_result(options, std::to_string(nanoseconds(Clock::now())));
    return 0;
  });
}

int run(const BenchOptions& options) {
  if (is_rank()) return run_as_rank(options);
  Measurement result{.name = "start", .what = "from launch to the end of the first step", .ms = {}};
  for (int i = -options.warmup; i < options.runs; ++i) {
    const std::int64_t start = nanoseconds(Clock::now());
    const Launched launched = launch_ranks(options.ranks);
    if (launched.exit_code != 0) return launched.exit_code;
    std::istringstream lines(launched.results);
    std::int64_t last = 0;
    for (std::int64_t end = 0; lines >> end;) last = std::max(last, end);
    check<Error>(last > start, "[bench] the ranks finished no step");
    if (i >= 0) result.ms.push_back(static_cast<double>(last - start) / 1e6);
  }
  report(options, result, options.ranks);
  return 0;
}

}  // namespace

std::function<int()> define_bench_start(CLI::App& app) {
  const auto options = std::make_shared<BenchOptions>();
  options->runs = 10;
  options->warmup = 1;
  add_common_options(app, *options);
  add_run_options(app, *options, "--runs");
  return [options] { return run(*options); };
}

}  // namespace cohort::tools
