#include <memory>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "cohort/nn/module.h"
#include "cohort/ops/ops.h"
#include "cohort/parallel/ddp.h"
#include "tools/bench.h"

namespace cohort::tools {
namespace {

struct OverheadBenchOptions : BenchOptions {
  std::int64_t parameters = 10'000;
  std::int64_t elements = 16;
  bool bucket_view = true;
};

// Adds its parameters to the input one by one: a graph with a node and a gradient for each.
class ManyParameters : public nn::ModuleOf<ManyParameters> {
 public:
  ManyParameters(std::int64_t count, std::int64_t elements) {
    parameters_.reserve(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      parameters_.push_back(register_parameter(str("p", i), Tensor::zeros({elements})));
    }
  }

  Tensor forward(const Tensor& x) {
    Tensor sum = x;
    for (const Tensor& parameter : parameters_) sum = sum + parameter;
    return sum;
  }

 private:
  std::vector<Tensor> parameters_;
};

template <typename Model>
double backward_ms(comm::ProcessGroup& group, Model& model, nn::Module& module, const Tensor& x) {
  const Tensor loss = sum(model(x));
  module.zero_grad();
  group.barrier().synchronize();  // waiting for a late rank is no overhead
  const Clock::time_point start = Clock::now();
  loss.backward();
  return ms_since(start);
}

void measure(const std::shared_ptr<comm::ProcessGroup>& group,
             const OverheadBenchOptions& options) {
  const auto make = [&] {
    return std::make_shared<ManyParameters>(options.parameters, options.elements);
  };
  const auto plain = make();
  const auto wrapped = make();
  DDP ddp(wrapped, group, {.gradient_as_bucket_view = options.bucket_view});
  const Tensor x = Tensor::ones({options.elements});
  Measurement result{.name = "overhead",
                     .what = str("backward of ", options.parameters, " parameters of ",
                                 options.elements, " elements with DDP"),
                     .ms = {}};
  std::vector<double> without;
  std::vector<double> added;
  for (int run = -options.warmup; run < options.runs; ++run) {
    const double alone = backward_ms(*group, *plain, *plain, x);
    const double with = backward_ms(*group, ddp, *wrapped, x);
    if (run < 0) continue;
    without.push_back(alone);
    result.ms.push_back(with);
    added.push_back((with - alone) * 1e3 / static_cast<double>(options.parameters));
  }
  result.values = {{"without_ms", median(without)}, {"added_us_per_parameter", median(added)}};
  report(*group, options, result);
}

}  // namespace

std::function<int()> define_bench_overhead(CLI::App& app) {
  const auto options = std::make_shared<OverheadBenchOptions>();
  options->runs = 20;
  options->warmup = 3;
  add_common_options(app, *options);
  add_run_options(app, *options, "--runs");
  app.add_option("--parameters", options->parameters, "Number of parameters")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{10'000'000}))
      ->capture_default_str();
  app.add_option("--elements", options->elements, "Elements of each")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 30))
      ->capture_default_str();
  app.add_flag_callback(
      "--no-bucket-view", [options] { options->bucket_view = false; },
      "Keep gradients outside the buckets");
  return [options] {
    return run_bench(*options, [&](const auto& group) { measure(group, *options); });
  };
}

}  // namespace cohort::tools
