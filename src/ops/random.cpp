#include "cohort/ops/random.h"

#include <numeric>
#include <utility>

#include "ops/op.h"

namespace cohort {
namespace {

// fill(contiguous tensor) on `a`, through a copy where `a` is not contiguous.
template <typename Fill>
void fill_packed(Tensor& a, Fill&& fill) {
  if (a.is_contiguous()) return fill(a);
  Tensor values = Tensor::empty(a.shape(), a.options());
  fill(values);
  a.detach().copy_(values);
}

void begin_fill(const char* operation, const Tensor& a) {
  op::begin_write(operation, a);
  check<DTypeError>(is_floating(a.dtype()), "[", operation, "] needs a floating tensor, got ",
                    a.dtype());
}

}  // namespace

Tensor& uniform_(Tensor& a, double low, double high, Generator& generator) {
  check(low <= high, "[uniform_] the lower bound ", low, " exceeds the upper one, ", high);
  begin_fill("uniform_", a);
  const PhiloxState state = generator.reserve(static_cast<std::uint64_t>(a.numel()));
  fill_packed(a, [&](const Tensor& out) {
    op::backend_of(out).random().uniform(op::stream_of(out), out, low, high, state);
  });
  return a;
}

Tensor& normal_(Tensor& a, double mean, double deviation, Generator& generator) {
  check(deviation >= 0, "[normal_] the deviation ", deviation, " is negative");
  begin_fill("normal_", a);
  const PhiloxState state = generator.reserve(static_cast<std::uint64_t>(a.numel()));
  fill_packed(a, [&](const Tensor& out) {
    op::backend_of(out).random().normal(op::stream_of(out), out, mean, deviation, state);
  });
  return a;
}

// Fisher and Yates' shuffle; an index below n is the upper half of 32 random bits times n, or of 64
// bits where n needs them (its bias, n / 2^64, is beyond measure).
std::vector<std::int64_t> random_permutation(std::int64_t count, Generator& generator) {
  check(count >= 0, "[random_permutation] a negative count, ", count);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  const PhiloxState state = generator.reserve(2 * static_cast<std::uint64_t>(count));
  __extension__ using Wide = unsigned __int128;
  Philox::Counter block{};
  for (std::uint64_t i = 0; i + 1 < order.size(); ++i) {
    if (i % 2 == 0) block = state.block(i / 2);
    const std::uint64_t bits = std::uint64_t{block[2 * (i % 2)]} << 32 | block[2 * (i % 2) + 1];
    const std::uint64_t left = order.size() - i;
    const auto chosen = i + static_cast<std::uint64_t>(Wide{bits} * left >> 64);
    std::swap(order[i], order[chosen]);
  }
  return order;
}

}  // namespace cohort
