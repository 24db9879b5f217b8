// Data-parallel training in twenty lines: cohort run -n 2 build/release/bin/twenty_lines

#include <cohort/cohort.h>

#include <iostream>

int train(int, char**) {
  cohort::manual_seed(1);
  auto group = cohort::comm::init_from_env();
  auto model = cohort::models::make_mlp("784-256-10");
  cohort::DDP ddp(model, group, {.gradient_as_bucket_view = true});
  cohort::optim::AdamW optimizer(ddp.parameters(), {.lr = 1e-3});
  auto dataset = std::make_shared<cohort::data::FashionMnist>();
  auto sampler = std::make_shared<cohort::data::DistributedSampler>(
      dataset->size(), cohort::data::DistributedSamplerOptions{.num_replicas = group->size(),
                                                               .rank = group->rank()});
  cohort::data::DataLoader loader(dataset, {.batch_size = 64, .sampler = sampler});
  for (auto& batch : loader) {
    auto loss = cohort::nn::functional::cross_entropy(ddp(batch.inputs), batch.targets);
    optimizer.zero_grad();
    loss.backward();  // gradients are averaged over the ranks while this runs
    optimizer.step();
  }
  if (group->rank() == 0) std::cout << ddp.overlap_report();
  return 0;
}

int main(int argc, char** argv) {
  return cohort::comm::run_main(argc, argv, train);
}
