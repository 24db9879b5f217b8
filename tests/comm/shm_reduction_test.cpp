// What a reduction's bits are: the sum in rank order, in fp32 (fp64), scaled once, rounded once.

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "comm/collective_values.h"
#include "comm/reduce.h"

namespace cohort::test {
namespace {

using comm::LocalWorld;
using comm::ProcessGroup;
using comm::ReduceOp;
using Group = std::shared_ptr<ProcessGroup>;

// The definition, written down without vectors.
template <typename T>
T reference(int world, std::int64_t i, ReduceOp op, double scale) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  Sum sum = static_cast<Sum>(wild_value<T>(0, i));
  for (int r = 1; r < world; ++r) sum = sum + static_cast<Sum>(wild_value<T>(r, i));
  if (op == ReduceOp::mean && scale == 1) return T(sum / static_cast<Sum>(world));
  if (op == ReduceOp::mean) return T(sum * static_cast<Sum>(scale / world));
  return T(sum * static_cast<Sum>(scale));
}

struct Case {
  int world;
  DType dtype;
};
class Reduction : public testing::TestWithParam<Case> {};

TEST_P(Reduction, HasTheBitsOfTheRankOrderedSumOnEveryRouteAndOperation) {
  const auto [world, dtype] = GetParam();
  LocalWorld(world).run([&, dtype = dtype, world = world](const Group& group) {
    dispatch(dtype, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (std::is_floating_point_v<T> || std::is_class_v<T>) {
        for (const std::int64_t part : {1, 13, 4'000, 200'003}) {
          for (const double scale : {1.0, 0.3}) {
            for (const ReduceOp op : {ReduceOp::sum, ReduceOp::mean}) {
              const std::int64_t size = part * world;
              const auto expected = [&](std::int64_t i) {
                return reference<T>(world, i, op, scale);
              };
              const auto value = [&](std::int64_t i) { return wild_value<T>(group->rank(), i); };
              for (const bool symmetric : {false, true}) {
                const Tensor tensor = symmetric ? group->allocate({size}, {.dtype = dtype})
                                                : Tensor::empty({size}, {.dtype = dtype});
                const std::string what =
                    str(size, symmetric ? " symmetric, " : " ordinary, ", op, " x ", scale);
                const Tensor shard = Tensor::empty({part}, {.dtype = dtype});
                fill_with<T>(tensor, value);
                group->reduce_scatter(shard, tensor, op, {.scale = scale}).wait();
                expect_elements<T>(
                    shard, [&](std::int64_t i) { return expected(group->rank() * part + i); },
                    "reduce_scatter of " + what);
                group->all_reduce(tensor, op, {.scale = scale}).wait();
                expect_elements<T>(tensor, expected, "all_reduce of " + what);
              }
            }
          }
        }
      }
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Floats, Reduction,
                         testing::Values(Case{1, f32}, Case{2, f32}, Case{3, f32}, Case{8, f32},
                                         Case{2, f64}, Case{3, f64}, Case{2, bf16}, Case{3, bf16},
                                         Case{2, f16}, Case{3, f16}),
                         [](const auto& info) {
                           return str("world", info.param.world, "_", name(info.param.dtype));
                         });

TEST(ReductionOrder, IsTheRanksAlsoWhereAnotherOrderWouldCancel) {
  LocalWorld(3).run([](const Group& group) {
    const float values[] = {1e8f, 1.0f, -1e8f};  // (1e8 + 1) - 1e8 = 0, but (1e8 - 1e8) + 1 = 1
    const Tensor tensor = Tensor::from<float>({values[group->rank()]}, {1});
    group->all_reduce(tensor).wait();
    EXPECT_EQ(tensor.data<float>()[0], 0.0f);
  });
}

TEST(ReductionOrder, RoundsLowPrecisionOnce) {
  LocalWorld(3).run([](const Group& group) {
    // 256 + 1 rounds to 256 in bf16, twice over; in fp32 the ones add up to a representable 258.
    const float values[] = {256, 1, 1};
    const Tensor tensor = Tensor::from<BFloat16>({BFloat16(values[group->rank()])}, {1});
    group->all_reduce(tensor).wait();
    EXPECT_EQ(static_cast<float>(tensor.data<BFloat16>()[0]), 258);
  });
}

TEST(ReductionOrder, ScalesBeforeRoundingSoThatHalvesDoNotOverflow) {
  LocalWorld(2).run([](const Group& group) {
    const Tensor tensor = Tensor::from<Float16>({Float16(32768.0f)}, {1});
    group->all_reduce(tensor, ReduceOp::mean).wait();
    EXPECT_EQ(static_cast<float>(tensor.data<Float16>()[0]), 32768);
  });
}

TEST(ReductionOrder, MeanOfEqualValuesIsThatValueForAnyNumberOfRanks) {
  for (const int world : {3, 5, 6, 7}) {
    LocalWorld(world).run([&](const Group& group) {
      const Tensor tensor = Tensor::empty({100});
      const auto value = [](std::int64_t i) { return static_cast<float>(i) * 3 + 1; };
      fill_with<float>(tensor, value);
      group->all_reduce(tensor, ReduceOp::mean).wait();
      expect_elements<float>(tensor, value, str("world ", world));
    });
  }
}

TEST(ReductionKernel, DoesNotDependOnPositionAlignmentOrCut) {
  for (const DType dtype : {f32, f64, bf16, f16}) {
    dispatch(dtype, [&](auto zero) {
      using T = decltype(zero);
      if constexpr (!std::is_integral_v<T>) {
        constexpr std::int64_t kCount = 301;
        std::vector<T> a(kCount + 1), b(kCount + 1), whole(kCount), piece(kCount + 1);
        for (std::int64_t i = 0; i < kCount; ++i) {
          a[static_cast<std::size_t>(i)] = wild_value<T>(0, i);
          b[static_cast<std::size_t>(i)] = wild_value<T>(1, i);
        }
        const comm::Finish finish = comm::finish_for(ReduceOp::mean, 1, 3);
        const auto run = [&](T* out, std::int64_t from, std::int64_t count) {
          void* targets[] = {out};
          const void* sources[] = {a.data() + from, b.data() + from, a.data() + from};
          comm::reduce(targets, sources, count, dtype, ReduceOp::sum, finish);
        };
        run(whole.data(), 0, kCount);
        for (const std::int64_t from : {1, 2, 3, 17, 250, 300}) {
          for (const std::int64_t count : {1, 2, 15, 16, 17, 51}) {
            if (from + count > kCount) continue;
            run(piece.data() + 1, from, count);
            EXPECT_EQ(std::memcmp(piece.data() + 1, whole.data() + from,
                                  static_cast<std::size_t>(count) * sizeof(T)),
                      0)
                << dtype << " from " << from << ", " << count << " elements";
          }
        }
      }
    });
  }
}

// All 65536 values of a half type, through the kernel's conversions and back.
template <typename T>
void expect_conversions_of(DType dtype) {
  std::vector<T> all(65536);
  for (std::uint32_t i = 0; i < all.size(); ++i) {
    all[i] = T::from_bits(static_cast<std::uint16_t>(i));
  }
  for (const double scale : {1.0, 0.37, 300.0, 1e-4}) {
    std::vector<T> out(all.size());
    void* targets[] = {out.data()};
    const void* sources[] = {all.data()};
    comm::reduce(targets, sources, static_cast<std::int64_t>(all.size()), dtype, ReduceOp::sum,
                 {comm::Finish::Kind::multiply, scale});
    for (std::size_t i = 0; i < all.size(); ++i) {
      const T expected(static_cast<float>(all[i]) * static_cast<float>(scale));
      if (std::isnan(static_cast<float>(expected))) {
        ASSERT_TRUE(std::isnan(static_cast<float>(out[i]))) << i << " x " << scale;
      } else {
        ASSERT_EQ(out[i].bits, expected.bits) << i << " x " << scale;
      }
    }
  }
}

TEST(ReductionKernel, ConvertsEveryHalfAsTheScalarTypesDo) {
  expect_conversions_of<BFloat16>(bf16);
  expect_conversions_of<Float16>(f16);
}

TEST(ReductionKernel, KeepsNanInMaxAndMinWhateverSideItIsOn) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> a = {nan, 1, 2, nan};
  std::vector<float> b = {1, nan, 3, nan};
  std::vector<float> out(4);
  void* targets[] = {out.data()};
  const void* sources[] = {a.data(), b.data()};
  for (const ReduceOp op : {ReduceOp::max, ReduceOp::min}) {
    comm::reduce(targets, sources, 4, f32, op, {});
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[3])) << op;
    EXPECT_EQ(out[2], op == ReduceOp::max ? 3 : 2);
  }
}

TEST(ReductionKernel, WrapsIntegersWithoutUndefinedBehaviour) {
  std::vector<std::int32_t> a = {std::numeric_limits<std::int32_t>::max(), 1 << 20};
  std::vector<std::int32_t> out(2);
  void* targets[] = {out.data()};
  const void* sources[] = {a.data(), a.data()};
  comm::reduce(targets, sources, 2, i32, ReduceOp::sum, {});
  EXPECT_EQ(out[0], -2);
  comm::reduce(targets, sources, 2, i32, ReduceOp::product, {});
  EXPECT_EQ(out[1], 0);
}

// What a world computes does not depend on how its streams are interleaved.
std::vector<std::uint8_t> program_bits(const RuntimeOptions& runtime) {
  std::vector<std::uint8_t> bits;
  LocalWorld(3, {.runtime = runtime}).run([&](const Group& group) {
    const Tensor a = group->allocate({5'001});
    const Tensor b = Tensor::empty({70'001}, {.dtype = bf16});
    const Tensor gathered = Tensor::empty({3 * 70'001}, {.dtype = bf16});
    fill_with<float>(a, [&](std::int64_t i) { return wild_value<float>(group->rank(), i); });
    fill_with<BFloat16>(b, [&](std::int64_t i) { return wild_value<BFloat16>(group->rank(), i); });
    std::vector<comm::Work> works;
    for (int step = 0; step < 5; ++step) {
      works.push_back(group->all_reduce(a, ReduceOp::mean));
      works.push_back(group->all_reduce(b, ReduceOp::mean));
      works.push_back(group->all_gather(gathered, b));
      // Written on the compute stream, between collectives that read and write the same memory.
      works.back().wait();
      a.detach().fill_(step);
      b.detach().copy_(gathered.as_strided({70'001}, {1}, 70'001));
    }
    works.push_back(group->all_reduce(a));
    works.back().wait();
    works.push_back(group->all_reduce(b));
    works.back().wait();
    const auto from_a = bytes_of(a);
    const auto from_b = bytes_of(b);
    if (group->rank() == 1) {
      bits = from_a;
      bits.insert(bits.end(), from_b.begin(), from_b.end());
    }
  });
  return bits;
}

TEST(Schedules, ChangeNoBit) {
  const auto expected = program_bits({});
  ASSERT_FALSE(expected.empty());
  for (std::uint64_t seed = 1; seed <= 5; ++seed) {
    EXPECT_EQ(program_bits({.schedule_seed = seed}), expected) << "schedule seed " << seed;
    EXPECT_EQ(program_bits({.delay_seed = seed}), expected) << "delay seed " << seed;
  }
}

}  // namespace
}  // namespace cohort::test
