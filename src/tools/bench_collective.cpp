#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "cohort/core/dtype.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"
#include "tools/bench.h"

namespace cohort::tools {
namespace {

struct CollectiveBenchOptions : BenchOptions {
  std::string op = "all_reduce";
  std::int64_t bytes = 26'214'400;
  std::string memory = "symmetric";
  std::string dtype = "f32";
  bool busy = false;
};

const std::vector<std::string> kOperations = {"all_reduce", "reduce_scatter", "all_gather",
                                              "broadcast",  "all_to_all",     "barrier"};

constexpr DType kDTypes[] = {f32, f64, bf16, f16, DType::i32, DType::i64};

DType dtype_named(const std::string& text) {
  for (const DType dtype : kDTypes) {
    if (name(dtype) == text) return dtype;
  }
  throw InvalidArgument("[bench] there is no dtype '" + text +
                        "' to communicate; f32, f64, bf16, f16, i32 or i64");
}

// A thread that keeps the rank's core busy, as backward does while buckets are reduced.
class BusyThread {
 public:
  explicit BusyThread(bool on) {
    if (!on) return;
    thread_ = std::jthread([this] {
      while (!stop_.load(std::memory_order_relaxed)) {
      }
    });
  }
  ~BusyThread() { stop_.store(true, std::memory_order_relaxed); }
  BusyThread(const BusyThread&) = delete;
  BusyThread& operator=(const BusyThread&) = delete;

 private:
  std::atomic<bool> stop_ = false;
  std::jthread thread_;  // last: joined before the flag goes
};

// The operands of an operation whose largest tensor has `bytes` bytes, cut to equal parts.
struct Operands {
  Tensor whole;
  Tensor part;

  Operands(comm::ProcessGroup& group, const CollectiveBenchOptions& options) {
    const DType dtype = dtype_named(options.dtype);
    const auto parts = static_cast<std::int64_t>(group.size());
    const std::int64_t each = options.bytes / static_cast<std::int64_t>(item_size(dtype)) / parts;
    const bool has_part =
        options.op == "reduce_scatter" || options.op == "all_gather" || options.op == "all_to_all";
    const std::int64_t second = options.op == "all_to_all" ? each * parts : each;
    const auto make = [&](std::int64_t count) {
      const TensorOptions plain{dtype, Device::cpu(), /*requires_grad=*/false};
      Tensor tensor = options.memory == "symmetric" ? group.allocate({count}, plain)
                                                    : Tensor::empty({count}, plain);
      // Zeros stay zeros, so that no run meets infinities that an earlier one made.
      tensor.zero_();
      return tensor;
    };
    whole = make(options.op == "barrier" ? 0 : each * parts);
    if (has_part) part = make(second);
  }
};

std::function<comm::Work()> operation(comm::ProcessGroup& group, const std::string& op,
                                      const Operands& on) {
  if (op == "all_reduce") return [&] { return group.all_reduce(on.whole); };
  if (op == "reduce_scatter") return [&] { return group.reduce_scatter(on.part, on.whole); };
  if (op == "all_gather") return [&] { return group.all_gather(on.whole, on.part); };
  if (op == "broadcast") return [&] { return group.broadcast(on.whole, 0); };
  if (op == "all_to_all") return [&] { return group.all_to_all(on.part, on.whole); };
  return [&] { return group.barrier(); };
}

void measure(comm::ProcessGroup& group, const CollectiveBenchOptions& options) {
  const Operands operands(group, options);
  const auto call = operation(group, options.op, operands);
  const BusyThread busy(options.busy);
  Measurement result{.name = "collective." + options.op,
                     .what = options.op == "barrier"
                                 ? "barrier"
                                 : str(options.op, " of ", operands.whole.bytes(), " bytes of ",
                                       options.dtype, " in ", options.memory, " memory"),
                     .ms = {},
                     .values = {{"bytes", static_cast<double>(operands.whole.bytes())}}};
  for (int run = -options.warmup; run < options.runs; ++run) {
    group.barrier().synchronize();
    const Clock::time_point start = Clock::now();
    call().synchronize();
    if (run >= 0) result.ms.push_back(ms_since(start));
  }
  report(group, options, result);
}

}  // namespace

std::function<int()> define_bench_collective(CLI::App& app) {
  const auto options = std::make_shared<CollectiveBenchOptions>();
  add_common_options(app, *options);
  add_run_options(app, *options, "--runs");
  app.add_option("--op", options->op, "The collective")
      ->check(CLI::IsMember(kOperations))
      ->capture_default_str();
  app.add_option("--bytes", options->bytes, "Size of its largest tensor")
      ->check(CLI::Range(std::int64_t{0}, std::int64_t{1} << 40))
      ->capture_default_str();
  app.add_option("--memory", options->memory, "symmetric (from group.allocate) or ordinary")
      ->check(CLI::IsMember({"symmetric", "ordinary"}))
      ->capture_default_str();
  app.add_option("--dtype", options->dtype, "Of the elements")->capture_default_str();
  app.add_flag("--busy", options->busy, "Another thread of each rank computes all the time");
  return [options] {
    dtype_named(options->dtype);  // a wrong one is told before ranks are started
    return run_bench(*options, [&](const auto& group) { measure(*group, *options); });
  };
}

}  // namespace cohort::tools
