#include <algorithm>
#include <iomanip>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cohort/core/error.h"
#include "tools/bench.h"

namespace cohort::tools {
namespace {

// More runs than anybody waits for.
constexpr int kMaxRuns = 10'000'000;
// As `cohort run` allows per node.
constexpr int kMaxRanks = 4096;

struct Spread {
  double median_ms;
  double min_ms;
  double max_ms;
};

Spread spread_of(const std::vector<double>& ms) {
  check(!ms.empty(), "[bench] nothing was measured");
  const auto [least, greatest] = std::minmax_element(ms.begin(), ms.end());
  return {median(ms), *least, *greatest};
}

std::string as_json(const Measurement& m, int ranks, const Spread& spread) {
  nlohmann::ordered_json line;
  line["name"] = m.name;
  line["ranks"] = ranks;
  line["median_ms"] = spread.median_ms;
  line["min_ms"] = spread.min_ms;
  line["max_ms"] = spread.max_ms;
  line["runs"] = m.ms.size();
  for (const auto& [name, value] : m.values) {
    const auto whole = static_cast<std::int64_t>(value);
    if (value == static_cast<double>(whole)) {
      line[name] = whole;  // a count: without ".0"
    } else {
      line[name] = value;
    }
  }
  return line.dump();
}

std::string as_text(const Measurement& m, int ranks, const Spread& spread) {
  std::ostringstream line;
  line << m.what << ", " << ranks << (ranks == 1 ? " rank: " : " ranks: ") << std::setprecision(4)
       << spread.median_ms << " ms (" << spread.min_ms << " to " << spread.max_ms << ", "
       << m.ms.size() << (m.ms.size() == 1 ? " run)" : " runs)");
  for (const auto& [name, value] : m.values) {
    const auto whole = static_cast<std::int64_t>(value);
    line << "  " << name << ' ';
    if (value == static_cast<double>(whole)) {
      line << whole;
    } else {
      line << value;
    }
  }
  return line.str();
}

void write(const BenchOptions& options, const Measurement& m, int ranks, const Spread& spread) {
  write_result(options, options.json ? as_json(m, ranks, spread) : as_text(m, ranks, spread));
}

}  // namespace

void add_common_options(CLI::App& app, BenchOptions& options) {
  app.add_option("-n,--ranks", options.ranks, "Ranks to start")
      ->check(CLI::Range(1, kMaxRanks))
      ->capture_default_str();
  app.add_option("--transport", options.transport,
                 "auto, shm to insist on shared memory, or gloo for TCP alone")
      ->check(CLI::IsMember({"auto", "shm", "gloo"}))
      ->capture_default_str();
  app.add_flag("--json", options.json, "Print a JSON object per line");
  app.add_option("--result-fd", options.result_fd)->group("");  // hidden: for the ranks we start
}

void add_run_options(CLI::App& app, BenchOptions& options, const std::string& name) {
  app.add_option(name, options.runs, "Timed runs")
      ->check(CLI::Range(1, kMaxRuns))
      ->capture_default_str();
  app.add_option("--warmup", options.warmup, "Runs before them")
      ->check(CLI::Range(0, kMaxRuns))
      ->capture_default_str();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

void report(const BenchOptions& options, const Measurement& measured, int ranks) {
  write(options, measured, ranks, spread_of(measured.ms));
}

void report(comm::ProcessGroup& group, const BenchOptions& options, const Measurement& mine) {
  const Spread own = spread_of(mine.ms);
  std::vector<double> row = {own.median_ms, own.min_ms, own.max_ms};
  for (const auto& [name, value] : mine.values) row.push_back(value);
  const auto width = static_cast<std::int64_t>(row.size());
  const Tensor gathered = Tensor::empty({group.size() * width}, {.dtype = DType::f64});
  group.all_gather(gathered, Tensor::from(row, {width})).synchronize();
  if (group.rank() != 0) return;

  const std::vector<double> rows = gathered.to_vector<double>();
  const auto at = [&](int rank, std::size_t column) {
    return rows[static_cast<std::size_t>(rank) * row.size() + column];
  };
  int slowest = 0;
  Measurement all = mine;
  for (int rank = 0; rank < group.size(); ++rank) {
    if (at(rank, 0) > at(slowest, 0)) slowest = rank;
    for (std::size_t i = 0; i < all.values.size(); ++i) {
      all.values[i].second = std::max(all.values[i].second, at(rank, 3 + i));
    }
  }
  write(options, all, group.size(), {at(slowest, 0), at(slowest, 1), at(slowest, 2)});
}

}  // namespace cohort::tools
