// Trains a classifier on Fashion-MNIST, on one rank or many:
//
//   train_fashion_mnist --epochs 2
//   cohort run -n 2 train_fashion_mnist --model cnn --overlap-report
//   cohort run -n 2 train_fashion_mnist --strategy full_shard --plan
//   cohort run -n 2 train_fashion_mnist --strategy full_shard --memory-limit 120000000
//
// and says after each epoch how much of the communication was hidden behind backward.

#include <cohort/cohort.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <iomanip>
#include <iostream>
#include <map>
#include <numeric>
#include <sstream>
#include <string>

namespace {

using namespace cohort;

struct Options {
  std::string data = "/usr/share/datasets/fashion-mnist";
  std::string model = "mlp";
  std::string widths = "784-512-256-10";
  std::string optimizer = "adamw";
  std::string strategy = "ddp";
  int shard_size = 0;
  std::int64_t memory_limit = 0;
  bool offload = false;
  int epochs = 6;
  std::int64_t steps = 0;
  std::int64_t batch_size = 64;
  double lr = 1e-3;
  std::uint64_t seed = 1;
  double bucket_cap_mb = 25;
  bool reverse_registration = true;
  bool bucket_view = true;
  bool overlap = true;
  bool overlap_report = false;
  bool plan = false;
};

const std::map<std::string, ShardingStrategy> kSharded = {
    {"no_shard", ShardingStrategy::no_shard},
    {"shard_grad_op", ShardingStrategy::shard_grad_op},
    {"full_shard", ShardingStrategy::full_shard},
    {"hybrid", ShardingStrategy::hybrid_shard},
};

void define_options(CLI::App& app, Options& o) {
  app.add_option("--data", o.data, "Folder of the IDX files")->capture_default_str();
  app.add_option("--model", o.model, "mlp or cnn")
      ->check(CLI::IsMember({"mlp", "cnn"}))
      ->capture_default_str();
  app.add_option("--widths", o.widths, "Layer widths of the MLP")->capture_default_str();
  app.add_option("--optimizer", o.optimizer, "adamw or sgd (with momentum 0.9)")
      ->check(CLI::IsMember({"adamw", "sgd"}))
      ->capture_default_str();
  app.add_option("--strategy", o.strategy,
                 "ddp; no_shard, shard_grad_op, full_shard or hybrid (FSDP)")
      ->check(CLI::IsMember({"ddp", "no_shard", "shard_grad_op", "full_shard", "hybrid"}))
      ->capture_default_str();
  app.add_option("--shard-size", o.shard_size,
                 "Ranks per shard group (hybrid); by default those of a host");
  app.add_option("--memory-limit", o.memory_limit, "Bytes that a rank may hold; 0 for no limit")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--offload", o.offload, "Keep shards in host memory (FSDP)");
  app.add_option("--steps", o.steps,
                 "Steps of an epoch, and batches of its evaluation, at most; 0 for all")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--epochs", o.epochs)->check(CLI::NonNegativeNumber)->capture_default_str();
  app.add_option("--batch-size", o.batch_size, "Samples per rank and step")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--lr", o.lr, "Learning rate")->capture_default_str();
  app.add_option("--seed", o.seed)->capture_default_str();
  app.add_option("--bucket-cap-mb", o.bucket_cap_mb, "MiB of gradients reduced together")
      ->capture_default_str();
  app.add_option("--reverse-registration", o.reverse_registration,
                 "Fill buckets from the last parameter; false also keeps that order for good, to "
                 "show what it costs")
      ->capture_default_str();
  app.add_option("--bucket-view", o.bucket_view, "Gradients live in their buckets")
      ->capture_default_str();
  app.add_option("--overlap", o.overlap, "Reduce during backward")->capture_default_str();
  app.add_flag("--overlap-report", o.overlap_report, "A table per bucket after each epoch");
  app.add_flag("--plan", o.plan, "Print what a step will send before it runs");
}

// What an epoch adds up, over this rank's steps.
struct Totals {
  double loss = 0;  // times samples
  double correct = 0;
  double samples = 0;
  double communication_ms = 0;
  double hidden_ms = 0;
  double exposed_ms = 0;
  std::int64_t bytes = 0;  // of one step

  void add(const Tensor& batch_loss, const Tensor& logits, const Tensor& targets) {
    const NoGrad no_grad;
    const auto count = static_cast<double>(targets.numel());
    loss += batch_loss.item() * count;
    correct += sum(equal(argmax(logits, 1), targets).to(f32)).item();
    samples += count;
  }
  void add(const OverlapReport& report) {
    communication_ms += report.communication_ms;
    hidden_ms += report.hidden_ms;
    exposed_ms += report.exposed_ms;
    bytes = report.bytes;
  }
  // Sums loss, hits and samples over the ranks.
  void reduce(comm::ProcessGroup& group) {
    const Tensor values = Tensor::from<double>({loss, correct, samples}, {3});
    group.all_reduce(values).wait();
    const std::vector<double> all = values.to_vector<double>();
    loss = all[0];
    correct = all[1];
    samples = all[2];
  }
};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Accuracy on the test set, each rank taking every size()-th batch. All ranks run equally many
// forwards, because those of FSDP gather parameters; one that has no batch left repeats a sample.
template <typename Model>
double evaluate(Model& model, const data::FashionMnist& test, comm::ProcessGroup& group,
                const Options& options) {
  const NoGrad no_grad;
  model.eval();
  Totals totals;
  std::vector<std::int64_t> indices;
  const std::int64_t batch_size = options.batch_size;
  const std::int64_t at_once = group.size() * batch_size;
  const std::int64_t size =
      options.steps > 0 ? std::min(test.size(), options.steps * at_once) : test.size();
  for (std::int64_t round = 0; round < size; round += at_once) {
    const std::int64_t first = round + group.rank() * batch_size;
    const bool counts = first < size;
    indices.resize(static_cast<std::size_t>(counts ? std::min(batch_size, size - first) : 1));
    std::iota(indices.begin(), indices.end(), counts ? first : 0);
    const data::Batch batch = test.get(indices);
    const Tensor logits = model(batch.inputs);
    if (counts) totals.add(cross_entropy(logits, batch.targets), logits, batch.targets);
  }
  totals.reduce(group);
  model.train();
  return totals.correct / totals.samples;
}

void print_progress(int epoch, std::int64_t step, std::int64_t steps, double loss) {
  std::fprintf(stderr, "\repoch %d  step %lld/%lld  loss %.4f ", epoch + 1,
               static_cast<long long>(step), static_cast<long long>(steps), loss);
  if (step == steps) std::fprintf(stderr, "\r%*s\r", 60, "");
}

void print_epoch(const Options& options, int epoch, const Totals& totals, double test_accuracy,
                 double seconds) {
  std::cout << std::fixed << std::setprecision(4) << "epoch " << epoch + 1 << "/" << options.epochs
            << "  loss " << totals.loss / totals.samples << "  accuracy "
            << totals.correct / totals.samples << "  test accuracy " << test_accuracy << "  "
            << std::setprecision(0) << totals.samples / seconds << " samples/s\n";
}

std::string peak_memory() {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << "peak memory "
       << static_cast<double>(memory_stats().peak_total) / (1 << 20) << " MiB";
  return text.str();
}

void print_communication(const Totals& totals, std::size_t buckets, double seconds) {
  const double hidden_share =
      totals.communication_ms > 0 ? 100 * totals.hidden_ms / totals.communication_ms : 0;
  std::cout << std::fixed << std::setprecision(3)
            << "  communication: " << totals.communication_ms / 1e3 << " s in collectives, "
            << totals.hidden_ms / 1e3 << " s hidden behind backward (" << std::setprecision(0)
            << hidden_share << " %), " << std::setprecision(3) << totals.exposed_ms / 1e3
            << " s exposed (" << std::setprecision(1) << totals.exposed_ms / 10 / seconds
            << " % of the epoch), " << static_cast<double>(totals.bytes) / (1 << 20) << " MiB in "
            << buckets << (buckets == 1 ? " bucket" : " buckets") << " per step; " << peak_memory()
            << '\n';
}

// Of FSDP: what the group has done since its counters were cleared, and the rank's peak of memory.
void print_traffic(const comm::ProcessGroup& group, double seconds) {
  const comm::OperationStats all = group.stats().total();
  std::cout << std::fixed << std::setprecision(3) << "  communication: " << all.seconds << " s in "
            << all.count << " collectives (" << std::setprecision(1) << 100 * all.seconds / seconds
            << " % of the epoch), " << std::setprecision(1)
            << static_cast<double>(all.logical_bytes) / (1 << 20) << " MiB; " << peak_memory()
            << '\n';
}

// What differs between the strategies.
void add_step(Totals& totals, const DDP<nn::Sequential>& ddp) {
  totals.add(ddp.overlap_report());
}
void add_step(Totals&, const FSDP<nn::Sequential>&) {}

void print_epoch_communication(const Options& options, const comm::ProcessGroup&,
                               const Totals& totals, const DDP<nn::Sequential>& ddp,
                               double seconds) {
  print_communication(totals, ddp.plan().buckets.size(), seconds);
  if (options.overlap_report) std::cout << ddp.overlap_report();
}
void print_epoch_communication(const Options&, const comm::ProcessGroup& group, const Totals&,
                               const FSDP<nn::Sequential>&, double seconds) {
  print_traffic(group, seconds);
}

void print_plan(DDP<nn::Sequential>& ddp, const optim::Optimizer& optimizer, const data::Batch&) {
  std::cout << ddp.plan(&optimizer);
}
void print_plan(FSDP<nn::Sequential>& fsdp, const optim::Optimizer&, const data::Batch& batch) {
  const Tensor inputs = parallel::on_meta(batch.inputs);
  const Tensor targets = parallel::on_meta(batch.targets);
  std::cout << fsdp.plan([&] { return cross_entropy(fsdp(inputs), targets); });
}

// An example of what the loader brings.
data::Batch first_batch(const data::FashionMnist& train_set, const Options& options) {
  std::vector<std::int64_t> indices(static_cast<std::size_t>(options.batch_size));
  std::iota(indices.begin(), indices.end(), 0);
  return train_set.get(indices);
}

std::unique_ptr<optim::Optimizer> make_optimizer(const Options& options,
                                                 const std::vector<Tensor>& parameters) {
  if (options.optimizer == "adamw") {
    return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{.lr = options.lr});
  }
  return std::make_unique<optim::SGD>(parameters,
                                      optim::SGDOptions{.lr = options.lr, .momentum = 0.9});
}

template <typename Model>
void train(const Options& options, Model& model, comm::ProcessGroup& group) {
  const bool speaks = group.rank() == 0;
  const auto load = [&](bool training) {
    const MemoryCategoryScope category(MemoryCategory::other);
    return std::make_shared<data::FashionMnist>(data::FashionMnistOptions{
        .root = options.data, .train = training, .flatten = options.model == "mlp"});
  };
  const auto train_set = load(true);
  const auto test_set = load(false);
  const auto optimizer = make_optimizer(options, model.parameters());
  auto sampler = std::make_shared<data::DistributedSampler>(
      train_set->size(),
      data::DistributedSamplerOptions{
          .num_replicas = group.size(), .rank = group.rank(), .seed = options.seed});
  data::DataLoader loader(train_set, {.batch_size = options.batch_size, .sampler = sampler});
  if (speaks && options.plan) print_plan(model, *optimizer, first_batch(*train_set, options));

  for (int epoch = 0; epoch < options.epochs; ++epoch) {
    const Clock::time_point start = Clock::now();
    group.reset_stats();
    Totals totals;
    std::int64_t step = 0;
    for (auto& batch : loader) {
      const Tensor logits = model(batch.inputs);
      const Tensor loss = cross_entropy(logits, batch.targets);
      optimizer->zero_grad();
      loss.backward();
      optimizer->step();
      totals.add(loss, logits, batch.targets);
      add_step(totals, model);
      ++step;
      if (speaks && isatty(STDERR_FILENO) != 0 && (step % 20 == 0 || step == loader.size())) {
        print_progress(epoch, step, loader.size(), loss.item());
      }
      if (step == options.steps) break;
    }
    const double seconds = seconds_since(start);
    totals.reduce(group);
    const double accuracy = evaluate(model, *test_set, group, options);
    if (!speaks) continue;
    print_epoch(options, epoch, totals, accuracy, seconds);
    if (group.size() > 1) print_epoch_communication(options, group, totals, model, seconds);
    std::cout.flush();
  }
}

int run(const Options& options) {
  manual_seed(options.seed);
  Context::current().runtime()->allocator(Device::cpu())->set_limit(options.memory_limit);
  const auto group = comm::init_from_env();
  auto net = options.model == "mlp" ? models::make_mlp(options.widths) : models::make_fashion_cnn();
  if (options.strategy == "ddp") {
    DDP ddp(std::move(net), group,
            {.bucket_cap_mb = options.bucket_cap_mb,
             .gradient_as_bucket_view = options.bucket_view,
             .overlap = options.overlap,
             .reverse_registration = options.reverse_registration,
             .rebuild_buckets = options.reverse_registration});
    train(options, ddp, *group);
  } else {
    FSDP fsdp(std::move(net), group,
              {.sharding_strategy = kSharded.at(options.strategy),
               .auto_wrap_policy = wrap::by_type<nn::Linear, nn::Conv2d>(),
               .cpu_offload = {.offload_params = options.offload},
               .sync_module_states = true,
               .shard_size = options.shard_size > 0
                                 ? options.shard_size
                                 : comm::LaunchEnv::from_environment().local_world_size});
    train(options, fsdp, *group);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a classifier on Fashion-MNIST");
  define_options(app, options);
  CLI11_PARSE(app, argc, argv);
  return comm::run_main(argc, argv, [&](int, char**) { return run(options); });
}
