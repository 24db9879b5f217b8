// The sum tree is a property of the group: rank order inside each host, then host order, with
// nothing rounded between. Every transport that knows of hosts gives its bits.

#include "comm/sum_tree.h"

#include <gmock/gmock.h>

#include "comm/collective_values.h"
#include "comm/worlds.h"

namespace cohort::test {
namespace {

using comm::ReduceOp;
using comm::SumTree;
using Group = std::shared_ptr<comm::ProcessGroup>;

TEST(SumTree, OrdersHostsByTheirLowestRank) {
  const std::vector<int> names = {7, 3, 7, 9, 3};
  const SumTree tree(names);
  EXPECT_THAT(tree.hosts(),
              testing::ElementsAre(testing::ElementsAre(0, 2), testing::ElementsAre(1, 4),
                                   testing::ElementsAre(3)));
  EXPECT_EQ(tree.host(4), 1);
  EXPECT_EQ(tree.place(4), 1);
  EXPECT_EQ(tree.place(3), 0);
}

// The definition, without vectors and without chunks.
template <typename T>
T reference(const std::vector<int>& host_of, std::int64_t i, ReduceOp op, double scale) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  const auto ranks = static_cast<int>(host_of.size());
  const SumTree tree(host_of);
  std::vector<Sum> partials;
  for (const auto& host : tree.hosts()) {
    Sum sum = static_cast<Sum>(wild_value<T>(host.front(), i));
    for (std::size_t k = 1; k < host.size(); ++k) {
      sum = sum + static_cast<Sum>(wild_value<T>(host[k], i));
    }
    partials.push_back(sum);
  }
  Sum sum = partials.front();
  for (std::size_t h = 1; h < partials.size(); ++h) sum = sum + partials[h];
  if (op == ReduceOp::mean && scale == 1) return T(sum / static_cast<Sum>(ranks));
  if (op == ReduceOp::mean) return T(sum * static_cast<Sum>(scale / ranks));
  return T(sum * static_cast<Sum>(scale));
}

struct Case {
  const char* name;
  std::vector<int> host_of;
};

class SumTreeOf : public testing::TestWithParam<std::tuple<Over, Case, DType>> {};

TEST_P(SumTreeOf, HasTheBitsOfItsDefinitionInEveryReduction) {
  const auto& [over, c, dtype] = GetParam();
  const std::vector<int>& host_of = c.host_of;
  const auto world = static_cast<int>(host_of.size());
  World(over, world, {.timeout = std::chrono::seconds(60)}, host_of)
      .run([&, dtype = dtype](const Group& group) {
        dispatch(dtype, [&](auto zero) {
          using T = decltype(zero);
          if constexpr (std::is_floating_point_v<T> || std::is_class_v<T>) {
            for (const std::int64_t part : {1, 997, 70'003}) {
              for (const auto& [op, scale] :
                   {std::pair{ReduceOp::sum, 0.3}, {ReduceOp::mean, 1.0}}) {
                const auto expected = [&, op = op, scale = scale](std::int64_t i) {
                  return reference<T>(host_of, i, op, scale);
                };
                const Tensor tensor = Tensor::empty({part * world}, {.dtype = dtype});
                fill_with<T>(tensor,
                             [&](std::int64_t i) { return wild_value<T>(group->rank(), i); });
                const Tensor shard = Tensor::empty({part}, {.dtype = dtype});
                const std::string what = str(part * world, " elements, ", op, " x ", scale);
                group->reduce_scatter(shard, tensor, op, {.scale = scale}).wait();
                expect_elements<T>(
                    shard, [&](std::int64_t i) { return expected(group->rank() * part + i); },
                    "reduce_scatter of " + what);
                group->all_reduce(tensor, op, {.scale = scale}).wait();
                expect_elements<T>(tensor, expected, "all_reduce of " + what);
              }
            }
          }
        });
      });
}

std::vector<Over> between_hosts() {
  std::vector<Over> built = transports();
  std::erase(built, Over::shm);
  return built;
}

// Without Gloo there is nothing to compare.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SumTreeOf);
INSTANTIATE_TEST_SUITE_P(
    All, SumTreeOf,
    testing::Combine(testing::ValuesIn(between_hosts()),
                     testing::Values(Case{"pairs", {0, 0, 1, 1}}, Case{"interleaved", {0, 1, 0, 1}},
                                     Case{"uneven", {0, 0, 0, 1, 1}}, Case{"alone", {0, 1, 1}},
                                     Case{"apart", {0, 1, 2}}),
                     testing::Values(f32, f64, bf16, f16)),
    [](const auto& info) {
      return str(name(std::get<Over>(info.param)), "_", std::get<Case>(info.param).name, "_",
                 name(std::get<DType>(info.param)));
    });

TEST(SumTree, RoundsNothingBetweenTheHosts) {
  if (between_hosts().empty()) GTEST_SKIP() << "this build has no Gloo";
  // 256 + 1 would round to 256 on the first host, and 256 + 2 is 258; unrounded it is 259, which
  // rounds to 260.
  for (const Over over : between_hosts()) {
    World(over, 4, {}, {0, 0, 1, 1}).run([&](const Group& group) {
      for (const std::int64_t size : {1, 100'000}) {
        const Tensor tensor = Tensor::empty({size}, {.dtype = bf16});
        fill_with<BFloat16>(
            tensor, [&](std::int64_t) { return BFloat16(group->rank() == 0 ? 256.0f : 1.0f); });
        group->all_reduce(tensor).wait();
        expect_elements<BFloat16>(
            tensor, [](std::int64_t) { return 260.0f; }, str(over, ", ", size));
      }
    });
  }
}

}  // namespace
}  // namespace cohort::test
