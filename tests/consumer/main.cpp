// Trains a tiny model on two thread ranks, with nothing but the installed package.

#include <cohort/cohort.h>

#include <atomic>
#include <cmath>
#include <iostream>

int main() {
  std::atomic<int> good{0};
  cohort::comm::LocalWorld(2).run([&](const auto& group) {
    auto layer = std::make_shared<cohort::nn::Linear>(1, 1);
    cohort::DDP ddp(layer, group);
    cohort::optim::SGD optimizer(ddp.parameters(), {.lr = 0.1});
    const auto x = cohort::Tensor::full({1, 1}, group->rank() + 1);
    cohort::sum(ddp(x)).backward();
    optimizer.step();
    if (std::abs(layer->weight.grad().item() - 1.5) < 1e-6) ++good;
  });
  if (good != 2) {
    std::cerr << "the mean of the gradients 1 and 2 is not 1.5\n";
    return 1;
  }
  std::cout << "consumer: passed\n";
  return 0;
}
