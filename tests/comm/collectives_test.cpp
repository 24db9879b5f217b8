// Every operation over worlds, dtypes, sizes and kinds of memory, against exact results.

#include <gmock/gmock.h>

#include <numeric>
#include <tuple>

#include "comm/collective_values.h"
#include "comm/worlds.h"

namespace cohort::test {
namespace {

using comm::ProcessGroup;
using comm::ReduceOp;
using Group = std::shared_ptr<ProcessGroup>;

enum class Memory { ordinary, symmetric, mixed };

// None, one, odd, and more than one cache line per rank.
const std::vector<std::int64_t> kSmall = {0, 1, 37, 5'003};
// Enough for several staged pieces. In a suite of its own: slow under the sanitizers.
const std::vector<std::int64_t> kLarge = {1'000'003};

struct Case {
  int world;
  DType dtype;
  Memory memory;
  std::vector<std::int64_t> sizes;
  Over over = Over::shm;
};

class Collectives : public testing::TestWithParam<Case> {
 protected:
  // Calls fn(group, T{}, size) on all ranks for every size.
  template <typename F>
  void on_grid(F fn) {
    const Case& c = GetParam();
    World(c.over, c.world, {.timeout = std::chrono::seconds(60)}).run([&](const Group& group) {
      dispatch(c.dtype, [&](auto zero) {
        for (const std::int64_t size : c.sizes) fn(group, zero, size);
      });
    });
  }

  // Of the case's kind. Mixed: symmetric on even ranks only, which takes the staged way.
  Tensor make(const Group& group, std::int64_t elements) {
    const Case& c = GetParam();
    if (c.memory == Memory::ordinary) return Tensor::empty({elements}, {.dtype = c.dtype});
    const Tensor symmetric = group->allocate({elements}, {.dtype = c.dtype});
    if (c.memory == Memory::mixed && group->rank() % 2 == 1) {
      return Tensor::empty({elements}, {.dtype = c.dtype});
    }
    return symmetric;
  }

  static std::string where(const Group& group, std::int64_t size) {
    return str("rank ", group->rank(), ", size ", size);
  }
};

template <typename T>
T from_number(double value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<T>(value);
  } else {
    return T(static_cast<float>(value));
  }
}

// A function: the sum of element i of all ranks.
template <typename T>
auto sums(int world) {
  return periodic([world](std::int64_t i) {
    double sum = 0;
    for (int r = 0; r < world; ++r) sum += as_number(rank_value<T>(r, i));
    return from_number<T>(std::is_same_v<T, bool> && sum > 0 ? 1 : sum);
  });
}

TEST_P(Collectives, AllReduceGivesTheExactSumOnAllRanks) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    const Tensor tensor = make(group, size);
    fill_with<T>(tensor, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    group->all_reduce(tensor).wait();
    expect_elements<T>(tensor, sums<T>(group->size()), where(group, size));
  });
}

TEST_P(Collectives, AllReduceTakesMaxMinAndProductInEveryDtype) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    for (const ReduceOp op : {ReduceOp::max, ReduceOp::min, ReduceOp::product}) {
      const Tensor tensor = make(group, size);
      // Powers of two keep products exact.
      const auto value = [&](int rank, std::int64_t i) -> double {
        if (op != ReduceOp::product) return as_number(rank_value<T>(rank, i));
        return std::is_same_v<T, bool> ? (i + rank) % 5 != 0 : (i + rank) % 3 == 0 ? 2 : 1;
      };
      fill_with<T>(tensor, periodic([&](std::int64_t i) {
                     return from_number<T>(value(group->rank(), i));
                   }));
      group->all_reduce(tensor, op).wait();
      const auto expected = periodic([&](std::int64_t i) {
        double result = value(0, i);
        for (int r = 1; r < group->size(); ++r) {
          result = op == ReduceOp::max   ? std::max(result, value(r, i))
                   : op == ReduceOp::min ? std::min(result, value(r, i))
                                         : result * value(r, i);
        }
        return from_number<T>(result);
      });
      expect_elements<T>(tensor, expected, str(op, ", ", where(group, size)));
    }
  });
}

TEST_P(Collectives, ReduceScatterLeavesEachRankItsPart) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    const std::int64_t part = size / group->size();
    const Tensor in = make(group, part * group->size());
    const Tensor out = Tensor::empty({part}, {.dtype = GetParam().dtype});
    fill_with<T>(in, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    group->reduce_scatter(out, in).wait();
    const auto sum = sums<T>(group->size());
    expect_elements<T>(
        out, [&](std::int64_t i) { return sum(group->rank() * part + i); }, where(group, size));
  });
}

// Rank r's part of an uneven distribution of `size` elements; some parts are empty.
std::vector<std::int64_t> uneven(int world, std::int64_t size) {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(world), 0);
  std::int64_t left = size;
  for (int r = 0; r + 1 < world; ++r) {
    counts[static_cast<std::size_t>(r)] = r % 2 == 1 ? 0 : left / 2;
    left -= counts[static_cast<std::size_t>(r)];
  }
  counts.back() = left;
  return counts;
}

TEST_P(Collectives, UnevenReduceScatterMayWriteIntoItsInput) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    const auto counts = uneven(group->size(), size);
    const std::int64_t before =
        std::accumulate(counts.begin(), counts.begin() + group->rank(), std::int64_t{0});
    const Tensor in = make(group, size);
    fill_with<T>(in, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    const Tensor out =
        in.as_strided({counts[static_cast<std::size_t>(group->rank())]}, {1}, before);
    group->reduce_scatter(out, in, counts).wait();
    const auto sum = sums<T>(group->size());
    expect_elements<T>(
        out, [&](std::int64_t i) { return sum(before + i); }, where(group, size));
  });
}

TEST_P(Collectives, AllGatherConcatenatesEvenParts) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    const std::int64_t part = size / group->size();
    const Tensor in = make(group, part);
    fill_with<T>(in, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    // Into ordinary memory (read from the peers) and into the case's own (written to them).
    for (const Tensor& out : {Tensor::empty({part * group->size()}, {.dtype = GetParam().dtype}),
                              make(group, part * group->size())}) {
      group->all_gather(out, in).wait();
      expect_elements<T>(
          out, [&](std::int64_t i) { return rank_value<T>(static_cast<int>(i / part), i % part); },
          where(group, size));
      group->barrier().wait();
    }
  });
}

TEST_P(Collectives, UnevenAllGatherMayReadFromItsOutput) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    const auto counts = uneven(group->size(), size);
    const std::int64_t before =
        std::accumulate(counts.begin(), counts.begin() + group->rank(), std::int64_t{0});
    const Tensor out = make(group, size);
    const Tensor in =
        out.as_strided({counts[static_cast<std::size_t>(group->rank())]}, {1}, before);
    fill_with<T>(in, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    group->all_gather(out, in, counts).wait();
    std::int64_t first = 0;
    int rank = 0;
    expect_elements<T>(
        out,
        [&](std::int64_t i) {
          while (i - first >= counts[static_cast<std::size_t>(rank)]) {
            first += counts[static_cast<std::size_t>(rank++)];
          }
          return rank_value<T>(rank, i - first);
        },
        where(group, size));
  });
}

TEST_P(Collectives, BroadcastGivesAllRanksTheRootsTensor) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    for (const int root : {0, group->size() - 1}) {
      const Tensor tensor = make(group, size);
      fill_with<T>(tensor, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
      group->broadcast(tensor, root).wait();
      expect_elements<T>(
          tensor, [&](std::int64_t i) { return rank_value<T>(root, i); }, where(group, size));
    }
  });
}

TEST_P(Collectives, AllToAllExchangesEvenParts) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    const std::int64_t part = size / group->size();
    const Tensor in = make(group, part * group->size());
    const Tensor out = Tensor::empty({part * group->size()}, {.dtype = GetParam().dtype});
    fill_with<T>(in, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    group->all_to_all(out, in).wait();
    expect_elements<T>(
        out,
        [&](std::int64_t i) {
          return rank_value<T>(static_cast<int>(i / part), group->rank() * part + i % part);
        },
        where(group, size));
  });
}

// Elements that rank `from` sends to rank `to`.
std::int64_t exchanged(int from, int to, std::int64_t size) {
  return (from + 2 * to) % 3 == 0 ? 0 : size / (1 + (from * 3 + to) % 5) / 4;
}

TEST_P(Collectives, UnevenAllToAllSendsWhatEachPairAgreedOn) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    std::vector<std::int64_t> in_counts;
    std::vector<std::int64_t> out_counts;
    std::vector<std::int64_t> starts;  // of this rank's part in each sender's tensor
    for (int r = 0; r < group->size(); ++r) {
      in_counts.push_back(exchanged(group->rank(), r, size));
      out_counts.push_back(exchanged(r, group->rank(), size));
      std::int64_t start = 0;
      for (int to = 0; to < group->rank(); ++to) start += exchanged(r, to, size);
      starts.push_back(start);
    }
    // Symmetric memory has one size on all ranks.
    const std::int64_t room = 8 * size;
    const Tensor whole = make(group, room);
    const Tensor in = whole.as_strided({std::reduce(in_counts.begin(), in_counts.end())}, {1}, 0);
    const Tensor out = Tensor::empty({std::reduce(out_counts.begin(), out_counts.end())},
                                     {.dtype = GetParam().dtype});
    fill_with<T>(in, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    group->all_to_all(out, out_counts, in, in_counts).wait();
    std::int64_t first = 0;
    std::size_t from = 0;
    expect_elements<T>(
        out,
        [&](std::int64_t i) {
          while (i - first >= out_counts[from]) first += out_counts[from++];
          return rank_value<T>(static_cast<int>(from), starts[from] + i - first);
        },
        where(group, size));
  });
}

TEST_P(Collectives, SendAndRecvCarryTensorsAroundARing) {
  on_grid([&](const Group& group, auto zero, std::int64_t size) {
    using T = decltype(zero);
    if (group->size() == 1) {
      EXPECT_THROW(group->send(make(group, size), 0), InvalidArgument);
      return;
    }
    const int next = (group->rank() + 1) % group->size();
    const int previous = (group->rank() + group->size() - 1) % group->size();
    const Tensor out = make(group, size);
    const Tensor in = make(group, size);
    fill_with<T>(out, [&](std::int64_t i) { return rank_value<T>(group->rank(), i); });
    // Long sends wait for their receiver, so one rank receives first.
    if (group->rank() == 0) group->recv(in, previous).wait();
    group->send(out, next).wait();
    if (group->rank() != 0) group->recv(in, previous).wait();
    expect_elements<T>(
        in, [&](std::int64_t i) { return rank_value<T>(previous, i); }, where(group, size));
  });
}

std::vector<Case> grid(const std::vector<std::int64_t>& sizes) {
  std::vector<Case> cases;
  for (const int world : {1, 2, 3, 4, 8}) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (const Memory memory : {Memory::ordinary, Memory::symmetric}) {
        cases.push_back({world, static_cast<DType>(dtype), memory, sizes});
      }
    }
  }
  cases.push_back({3, f32, Memory::mixed, sizes});
  cases.push_back({4, bf16, Memory::mixed, sizes});
  if (is_built(Over::gloo)) {
    for (int dtype = 0; dtype < kDTypeCount; ++dtype) {
      for (const int world : {2, 3, 4}) {
        cases.push_back({world, static_cast<DType>(dtype), Memory::ordinary, sizes, Over::gloo});
      }
    }
    // Three ranks: hosts of two and of one.
    for (const DType dtype : {f32, f64, bf16, i64}) {
      for (const int world : {3, 4}) {
        cases.push_back({world, dtype, Memory::ordinary, sizes, Over::hierarchical});
        cases.push_back({world, dtype, Memory::symmetric, sizes, Over::hierarchical});
      }
    }
    cases.push_back({4, f32, Memory::symmetric, sizes, Over::gloo});
    cases.push_back({4, bf16, Memory::mixed, sizes, Over::hierarchical});
  }
  return cases;
}

std::string case_name(const testing::TestParamInfo<Case>& info) {
  const Case& c = info.param;
  const char* memory = c.memory == Memory::ordinary    ? "ordinary"
                       : c.memory == Memory::symmetric ? "symmetric"
                                                       : "mixed";
  return str(name(c.over), "_world", c.world, "_", name(c.dtype), "_", memory);
}

INSTANTIATE_TEST_SUITE_P(Small, Collectives, testing::ValuesIn(grid(kSmall)), case_name);
INSTANTIATE_TEST_SUITE_P(Large, Collectives, testing::ValuesIn(grid(kLarge)), case_name);

}  // namespace
}  // namespace cohort::test
