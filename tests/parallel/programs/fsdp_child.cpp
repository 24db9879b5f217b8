// A rank of the fault tests of FSDP: trains over copies with prefetch, and one rank dies in
// backward.
//
//   fsdp_child VICTIM STEP PARAMETER TIMEOUT_MS BACKEND
//
// VICTIM raises SIGKILL in itself in backward of step STEP, when the gradient of its parameter
// number PARAMETER has come: earlier units' reductions, and the gathers of later ones, are under
// way. BACKEND: shm or gloo. Prints "running" when the loop is under way.

#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "cohort/autograd/autograd.h"
#include "cohort/comm/init.h"
#include "cohort/core/context.h"
#include "cohort/models/models.h"
#include "cohort/nn/linear.h"
#include "cohort/ops/ops.h"
#include "cohort/optim/optim.h"
#include "cohort/parallel/fsdp.h"

namespace {

using namespace cohort;

int run(int argc, char** argv) {
  check(argc == 6, "[fsdp_child] needs five arguments");
  const int victim = std::atoi(argv[1]);
  const int fatal_step = std::atoi(argv[2]);
  const auto parameter = static_cast<std::size_t>(std::atoi(argv[3]));
  const auto group =
      comm::init_from_env({.timeout = Milliseconds(std::atol(argv[4])), .backend = argv[5]});
  manual_seed(1);
  FSDP fsdp(models::make_mlp("64-512-512-512-10"), group,
            {.auto_wrap_policy = wrap::by_type<nn::Linear>(),
             .forward_prefetch = true,
             .zero_copy = false});
  optim::AdamW optimizer(fsdp.parameters(), {.lr = 0.01});
  int step = 0;
  const HookHandle hook =
      register_post_accumulate_grad_hook(fsdp.parameters()[parameter], [&](const Tensor&) {
        if (group->rank() == victim && step == fatal_step) std::raise(SIGKILL);
      });
  for (;; ++step) {
    const Tensor loss = sum(fsdp(Tensor::randn({16, 64})));
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    if (step == 1) {
      std::printf("running\n");
      std::fflush(stdout);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::comm::run_main(argc, argv, run);
}
