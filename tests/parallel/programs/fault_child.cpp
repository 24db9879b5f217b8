// A rank of the fault tests: trains under DDP, and one of the ranks goes wrong.
//
//   fault_child KIND VICTIM STEP MOMENT TIMEOUT_MS STEPS BACKEND
//
// KIND: none, throw, skip, extra, dtype, size, order. Faults that come from outside (SIGKILL,
// SIGSTOP) need none here. MOMENT: a number that chooses where in step STEP, and which collective.
// STEPS: after so many the job ends well; 0 for never. BACKEND: shm or gloo. Prints "running" when
// the loop is under way.

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/comm/init.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/models/models.h"
#include "cohort/ops/ops.h"
#include "cohort/optim/optim.h"
#include "cohort/parallel/ddp.h"

namespace {

using namespace cohort;
using Group = std::shared_ptr<comm::ProcessGroup>;

struct Plan {
  std::string kind;
  int victim;
  int step;
  int moment;
  Milliseconds timeout;
  int steps;
};

// A training loop with communication of three kinds in every step: DDP's buckets, a sum over the
// world, and a sum over a second group.
class Training {
 public:
  Training(const Plan& plan, const Group& world)
      : plan_(plan),
        world_(world),
        metrics_(world->split(0, 0, "metrics")),
        ddp_(models::make_mlp("64-256-256-10"), world,
             {.bucket_cap_mb = 0.1, .gradient_as_bucket_view = true}),
        optimizer_(ddp_.parameters(), {.lr = 0.01}) {
    hook_ = register_post_accumulate_grad_hook(ddp_.parameters()[2],
                                               [this](const Tensor&) { at(kInBackward); });
  }

  void run() {
    for (step_ = 0; plan_.steps == 0 || step_ < plan_.steps; ++step_) {
      run_step();
      if (step_ == 2) {
        std::printf("running\n");
        std::fflush(stdout);
      }
    }
  }

 private:
  enum Moment { kBeforeForward, kBeforeBackward, kInBackward, kBeforeOptimizer, kBeforeReport };
  static constexpr int kMoments = 5;

  bool faulty(const char* kind) const {
    return step_ == plan_.step && world_->rank() == plan_.victim && plan_.kind == kind;
  }

  // What goes wrong between the collectives.
  void at(Moment moment) {
    if (plan_.moment % kMoments != moment) return;
    if (faulty("throw")) {
      throw std::runtime_error(str("the fault of rank ", plan_.victim));
    }
    if (faulty("extra")) {
      world_->all_reduce(Tensor::ones({3}), comm::ReduceOp::sum, {.owner = "extra"}).wait();
    }
  }

  void run_step() {
    const Tensor x = Tensor::randn({16, 64});
    std::vector<std::int64_t> labels;
    for (int i = 0; i < 16; ++i) labels.push_back((i + step_) % 10);
    at(kBeforeForward);
    const bool skip_buckets = faulty("skip") && plan_.moment % 3 == 0;
    Tensor loss;
    if (skip_buckets) {
      const NoSync guard = ddp_.no_sync();
      loss = cross_entropy(ddp_(x), Tensor::from(labels, {16}));
    } else {
      loss = cross_entropy(ddp_(x), Tensor::from(labels, {16}));
    }
    at(kBeforeBackward);
    optimizer_.zero_grad();
    loss.backward();
    at(kBeforeOptimizer);
    optimizer_.step();
    at(kBeforeReport);
    report(loss.detach());
  }

  void report(const Tensor& loss) {
    const bool other_order = faulty("order");
    if (other_order && plan_.moment % 2 == 0) {
      // Two collectives of one group.
      count_samples(world_);
      sum_loss(loss);
      count_samples(metrics_);
      return;
    }
    // Or of two groups.
    if (other_order) count_samples(metrics_);
    if (!(faulty("skip") && plan_.moment % 3 == 1)) sum_loss(loss);
    count_samples(world_);
    if (!other_order && !(faulty("skip") && plan_.moment % 3 == 2)) count_samples(metrics_);
  }

  void sum_loss(const Tensor& loss) {
    Tensor value = loss.reshape({1});
    if (faulty("dtype")) value = value.to(f64);
    if (faulty("size")) value = Tensor::zeros({2});
    world_->all_reduce(value, comm::ReduceOp::mean, {.owner = "loss"}).wait();
  }

  void count_samples(const Group& group) {
    const Tensor count = Tensor::full({1}, 16, {.dtype = i64});
    group->all_reduce(count, comm::ReduceOp::sum, {.owner = "samples"}).wait();
  }

  const Plan plan_;
  const Group world_;
  const Group metrics_;
  DDP<nn::Sequential> ddp_;
  optim::SGD optimizer_;
  HookHandle hook_;
  int step_ = 0;
};

int run(int argc, char** argv) {
  check(argc == 8, "[fault_child] needs seven arguments");
  const Plan plan{argv[1],
                  std::atoi(argv[2]),
                  std::atoi(argv[3]),
                  std::atoi(argv[4]),
                  Milliseconds(std::atol(argv[5])),
                  std::atoi(argv[6])};
  const Group world = comm::init_from_env({.timeout = plan.timeout, .backend = argv[7]});
  manual_seed(1);
  Training(plan, world).run();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::comm::run_main(argc, argv, run);
}
