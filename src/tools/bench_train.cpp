#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/link_delay.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/models/models.h"
#include "cohort/nn/nn.h"
#include "cohort/ops/ops.h"
#include "cohort/optim/optim.h"
#include "cohort/parallel/ddp.h"
#include "cohort/parallel/fsdp.h"
#include "tools/bench.h"

namespace cohort::tools {
namespace {

struct TrainBenchOptions : BenchOptions {
  std::string model = "mlp:784-2048-2048-2048-10";
  std::string optimizer = "sgd";
  std::string strategy = "ddp";
  std::int64_t batch = 32;
  std::int64_t link_delay_us = 0;
  DDPOptions ddp = {.gradient_as_bucket_view = true};
  FSDPOptions fsdp = {.auto_wrap_policy = wrap::by_type<nn::Linear, nn::Conv2d>()};
};

const std::map<std::string, ShardingStrategy> kSharded = {
    {"full_shard", ShardingStrategy::full_shard},
    {"shard_grad_op", ShardingStrategy::shard_grad_op},
    {"no_shard", ShardingStrategy::no_shard},
    {"hybrid_shard", ShardingStrategy::hybrid_shard},
};

constexpr std::string_view kMlp = "mlp:";

// A model and what it is fed with.
struct Task {
  std::shared_ptr<nn::Sequential> model;
  Tensor inputs;
  Tensor targets;
};

void validate(const TrainBenchOptions& options) {
  if (options.model == "cnn") return;
  check(options.model.starts_with(kMlp), "[bench] there is no model '", options.model,
        "'; cnn, or mlp: and its widths, such as mlp:784-256-10");
  models::parse_widths(std::string_view(options.model).substr(kMlp.size()));
}

Task make_task(const TrainBenchOptions& options, int rank) {
  manual_seed(1);
  Task task;
  std::int64_t classes = 10;
  Shape inputs{options.batch, 1, 28, 28};
  if (options.model == "cnn") {
    task.model = models::make_fashion_cnn();
  } else {
    const auto spec = std::string_view(options.model).substr(kMlp.size());
    const std::vector<std::int64_t> widths = models::parse_widths(spec);
    task.model = models::make_mlp(spec);
    classes = widths.back();
    inputs = {options.batch, widths.front()};
  }
  task.inputs = Tensor::randn(inputs);
  std::vector<std::int64_t> labels;
  for (std::int64_t i = 0; i < options.batch; ++i) labels.push_back((i * 7 + rank) % classes);
  task.targets = Tensor::from(labels, {options.batch});
  return task;
}

std::unique_ptr<optim::Optimizer> make_optimizer(const std::string& name,
                                                 const std::vector<Tensor>& parameters) {
  if (name == "adam") return std::make_unique<optim::Adam>(parameters, optim::AdamOptions{});
  if (name == "adamw") return std::make_unique<optim::AdamW>(parameters, optim::AdamWOptions{});
  return std::make_unique<optim::SGD>(parameters, optim::SGDOptions{.lr = 0.01, .momentum = 0.9});
}

// One step, cut into its parts.
struct StepTimes {
  std::vector<double> step;
  std::vector<double> forward;
  std::vector<double> backward;
  std::vector<double> optimizer;
};

template <typename Model>
void run_step(Model& model, const Task& task, optim::Optimizer& optimizer, StepTimes* times) {
  const Clock::time_point start = Clock::now();
  const Tensor loss = cross_entropy(model(task.inputs), task.targets);
  const double forward = ms_since(start);
  optimizer.zero_grad();
  loss.backward();
  const double backward = ms_since(start);
  optimizer.step();
  const double end = ms_since(start);
  if (times == nullptr) return;
  times->step.push_back(end);
  times->forward.push_back(forward);
  times->backward.push_back(backward - forward);
  times->optimizer.push_back(end - backward);
}

// What DDP says about its communication: one entry per step.
struct Communication {
  std::vector<double> total;
  std::vector<double> exposed;
  std::size_t buckets = 0;

  void add(const OverlapReport& report) {
    total.push_back(report.communication_ms);
    exposed.push_back(report.exposed_ms);
    buckets = report.buckets.size();
  }
};

template <typename Model, typename AfterStep>
void train(comm::ProcessGroup& group, const TrainBenchOptions& options, const Task& task,
           Model& model, const AfterStep& after_step, StepTimes& times) {
  const auto optimizer = make_optimizer(options.optimizer, model.parameters());
  for (int i = 0; i < options.warmup; ++i) run_step(model, task, *optimizer, nullptr);
  Context::current().runtime()->allocator(Device::cpu())->reset_peak();
  // Without communication of their own, the ranks at least begin together.
  group.barrier().synchronize();
  for (int i = 0; i < options.runs; ++i) {
    run_step(model, task, *optimizer, &times);
    after_step();
  }
}

void measure(const std::shared_ptr<comm::ProcessGroup>& group, const TrainBenchOptions& options) {
  const Task task = make_task(options, group->rank());
  comm::set_link_delay(std::chrono::microseconds(options.link_delay_us));
  StepTimes times;
  Communication communication;
  if (options.strategy == "ddp") {
    DDP ddp(task.model, group, options.ddp);
    train(
        *group, options, task, ddp, [&] { communication.add(ddp.overlap_report()); }, times);
  } else if (const auto sharded = kSharded.find(options.strategy); sharded != kSharded.end()) {
    FSDPOptions fsdp_options = options.fsdp;
    fsdp_options.sharding_strategy = sharded->second;
    FSDP fsdp(task.model, group, fsdp_options);
    train(
        *group, options, task, fsdp, [] {}, times);
  } else {
    train(
        *group, options, task, *task.model, [] {}, times);
  }
  const bool has = !communication.total.empty();
  report(*group, options,
         {.name = "train." + options.strategy,
          .what = str("step of ", options.model, ", batch ", options.batch, ", ", options.optimizer,
                      ", ", options.strategy),
          .ms = times.step,
          .values = {{"forward_ms", median(times.forward)},
                     {"backward_ms", median(times.backward)},
                     {"optimizer_ms", median(times.optimizer)},
                     {"comm_ms", has ? median(communication.total) : 0},
                     {"exposed_comm_ms", has ? median(communication.exposed) : 0},
                     {"buckets", static_cast<double>(communication.buckets)},
                     {"peak_bytes", static_cast<double>(memory_stats().peak_total)}}});
}

}  // namespace

std::function<int()> define_bench_train(CLI::App& app) {
  const auto options = std::make_shared<TrainBenchOptions>();
  add_common_options(app, *options);
  add_run_options(app, *options, "--steps");
  app.add_option("--model", options->model, "cnn, or mlp: and its widths")->capture_default_str();
  app.add_option("--batch", options->batch, "Samples per rank and step")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_option("--optimizer", options->optimizer, "sgd (momentum 0.9), adam or adamw")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}))
      ->capture_default_str();
  app.add_option("--strategy", options->strategy,
                 "ddp; full_shard, shard_grad_op, no_shard or hybrid_shard (FSDP); or none: every "
                 "rank trains alone, at the same time")
      ->check(
          CLI::IsMember({"ddp", "full_shard", "shard_grad_op", "no_shard", "hybrid_shard", "none"}))
      ->capture_default_str();
  app.add_option("--bucket-cap-mb", options->ddp.bucket_cap_mb, "DDP's option")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--last-bucket-cap-mb", options->ddp.last_bucket_cap_mb, "DDP's option")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--shard-size", options->fsdp.shard_size, "Ranks per shard group (hybrid_shard)");
  app.add_flag_callback(
      "--no-zero-copy", [options] { options->fsdp.zero_copy = false; }, "FSDP gathers by copying");
  app.add_flag_callback(
      "--no-prefetch", [options] { options->fsdp.backward_prefetch = BackwardPrefetch::none; },
      "FSDP gathers a unit when it is needed");
  app.add_flag("--forward-prefetch", options->fsdp.forward_prefetch,
               "FSDP gathers the next unit while one computes in forward");
  app.add_option("--link-delay-us", options->link_delay_us,
                 "Each collective takes so much longer, as over a slow link")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--find-unused-parameters", options->ddp.find_unused_parameters, "DDP's option");
  app.add_flag("--static-graph", options->ddp.static_graph, "DDP's option");
  app.add_flag_callback(
      "--no-overlap", [options] { options->ddp.overlap = false; }, "Reduce after backward");
  app.add_flag_callback(
      "--no-bucket-view", [options] { options->ddp.gradient_as_bucket_view = false; },
      "Keep gradients outside the buckets");
  return [options] {
    validate(*options);
    return run_bench(*options, [&](const auto& group) { measure(group, *options); });
  };
}

}  // namespace cohort::tools
