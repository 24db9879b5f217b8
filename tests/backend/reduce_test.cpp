// The sum kernels on every instruction set: equal bits on all of them, the widest to the narrowest.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <vector>

#include "backend/backend.h"
#include "backend/cpu/reduce_add.h"
#include "backend/reduce_kernels.h"
#include "cohort/core/context.h"
#include "support/instruction_sets.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort::backend {
namespace {

class ReduceKernel : public test::OnEveryInstructionSet {};
INSTANTIATE_TEST_SUITE_P(Targets, ReduceKernel, testing::ValuesIn(test::instruction_sets()),
                         test::instruction_set_name);

// 64 interleaved partial sums, added in halves: the order that the header promises.
template <typename T>
T in_promised_order(const std::vector<T>& numbers) {
  std::vector<T> partial(64, T{0});
  for (std::size_t i = 0; i < numbers.size(); ++i) partial[i % 64] += numbers[i];
  for (std::size_t half = 32; half > 0; half /= 2) {
    for (std::size_t j = 0; j < half; ++j) partial[j] += partial[j + half];
  }
  return partial[0];
}

TEST_P(ReduceKernel, AddsInTheSameOrderWhateverTheVectorWidth) {
  for (const std::int64_t count : {0, 1, 5, 63, 64, 65, 200, 1000, 1024}) {
    const auto floats = test::values({count}, f32).to_vector<float>();
    EXPECT_EQ(cpu::add_up(floats.data(), floats.size()), in_promised_order(floats)) << count;
    const auto doubles = test::values({count}, f64).detach().to_vector<double>();
    EXPECT_EQ(cpu::add_up(doubles.data(), doubles.size()), in_promised_order(doubles)) << count;
  }
}

TEST_P(ReduceKernel, WritesAddsAndDividesIntoOutputsOfAnyDtypeAndStride) {
  const auto& kernels = cpu_backend().reduce();
  const Stream& stream = Context::current().stream(Device::cpu());
  for (const DType in_dtype : {f32, bf16, i64}) {
    for (const DType out_dtype : {f32, f64, bf16, f16, i64}) {
      const Tensor in = Tensor::full({5, 6, 8}, 2, {in_dtype});
      for (const Shape& kept : {Shape{5, 1, 8}, Shape{1, 6, 1}, Shape{5, 6, 1}, Shape{1, 1, 8}}) {
        // Every second element of a larger tensor.
        const Tensor base = Tensor::full({2 * kept.product()}, 7, {out_dtype});
        Dims strides = contiguous_strides(kept);
        for (std::int64_t& stride : strides) stride *= 2;
        const Tensor out = base.as_strided(kept, strides, 0);
        const double terms = 240.0 / static_cast<double>(kept.product());
        const auto expect_all = [&](double want) {
          const auto got = base.to_vector<double>();
          for (std::size_t i = 0; i < got.size(); ++i) {
            ASSERT_EQ(got[i], i % 2 == 0 ? want : 7) << in_dtype << out_dtype << kept;
          }
        };
        kernels.sum(stream, out, in, /*accumulate=*/false, 2);
        expect_all(terms);
        kernels.sum(stream, out, in, /*accumulate=*/true, 1);
        expect_all(3 * terms);
      }
    }
  }
}

TEST_P(ReduceKernel, GivesTheBitsOfTheBestInstructionSet) {
  const auto sums = [] {
    const Tensor x = test::values({37, 5, 131}, f32);
    std::vector<float> all;
    for (const Shape& kept : {Shape{37, 1, 131}, Shape{1, 5, 1}, Shape{1, 1, 1}, Shape{37, 5, 1}}) {
      const Tensor out = Tensor::empty(kept);
      cpu_backend().reduce().sum(Context::current().stream(Device::cpu()), out, x, false, 3);
      const auto values = out.to_vector<float>();
      all.insert(all.end(), values.begin(), values.end());
    }
    return all;
  };
  const auto here = sums();
  TearDown();  // back to the best one
  EXPECT_EQ(here, sums());
}

}  // namespace
}  // namespace cohort::backend
