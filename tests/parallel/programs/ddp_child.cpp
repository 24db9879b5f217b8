// A rank of the process tests of DDP.
//   ddp_child train BUCKET_CAP_MB OVERLAP   trains and prints the hash of its parameters
//   ddp_child FAULT                         trains until rank 1 does what FAULT says:
//     model         builds another model
//     loader        its data end in an exception
//     unused        leaves a parameter out of the loss, once; then goes on
//     frozen        freezes a parameter
//     memory        has no room for the buckets
//     early         returns early

#include <cstdlib>
#include <iostream>
#include <string>

#include "cohort/comm/init.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/nn/linear.h"
#include "parallel/training.h"

namespace cohort {
namespace {

// One write per line: the ranks share a terminal.
void say(const std::string& line) {
  std::cout << line + "\n" << std::flush;
}

struct TwoHeads : nn::ModuleOf<TwoHeads> {
  explicit TwoHeads(std::int64_t width) : first(make_module<nn::Linear>("first", 4, width)) {}
  Tensor forward(const Tensor& x, bool both) {
    const Tensor y = sum(first(x));
    return both ? y + sum(second(x)) : y;
  }
  nn::Child<nn::Linear> first;
  nn::Child<nn::Linear> second = make_module<nn::Linear>("second", 4, 3);
};

int train_with_fault(const std::string& fault) {
  const auto group = comm::init_from_env({.timeout = std::chrono::seconds(20)});
  const bool culprit = group->rank() == 1;
  if (culprit && fault == "memory") {
    Context::current().runtime()->allocator(Device::cpu())->set_limit(2000);
  }
  auto net = std::make_shared<TwoHeads>(culprit && fault == "model" ? 7 : 300);
  DDP ddp(net, group, {.gradient_as_bucket_view = true});
  for (int step = 0; step < 5; ++step) {
    if (culprit && step == 2) {
      if (fault == "loader") throw FileError("[loader] batch 2 is missing");
      if (fault == "frozen") net->second->weight.set_requires_grad(false);
      if (fault == "early") return 0;
    }
    ddp.module().zero_grad();
    try {
      ddp(Tensor::ones({2, 4}), !(culprit && step == 2 && fault == "unused")).backward();
    } catch (const RemoteError& error) {
      say(str("rank ", group->rank(), " goes on after: ", error.what()));
    } catch (const AutogradError& error) {
      if (fault != "unused") throw;
      say(str("rank ", group->rank(), " goes on after its own: ", error.what()));
    }
  }
  say(str("rank ", group->rank(), " done"));
  return 0;
}

int run(int count, char** args) {
  const std::string mode = count > 1 ? args[1] : "";
  if (mode != "train") return train_with_fault(mode);
  check(count == 4, "[ddp_child] needs a bucket cap and an overlap");
  const auto group = comm::init_from_env();
  const auto parameters = test::train_rank(group,
                                           {.bucket_cap_mb = std::atof(args[2]),
                                            .gradient_as_bucket_view = true,
                                            .overlap = std::atoi(args[3]) != 0},
                                           false);
  say(str("rank ", group->rank(), " hash ", test::hash_of(parameters)));
  return 0;
}

}  // namespace
}  // namespace cohort

int main(int argc, char** argv) {
  return cohort::comm::run_main(argc, argv, cohort::run);
}
