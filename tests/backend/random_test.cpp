// The random kernels on every instruction set.

#include <gtest/gtest.h>

#include <vector>

#include "backend/backend.h"
#include "backend/random_kernels.h"
#include "cohort/core/context.h"
#include "support/instruction_sets.h"

namespace cohort::backend {
namespace {

class RandomKernel : public test::OnEveryInstructionSet {};
INSTANTIATE_TEST_SUITE_P(Targets, RandomKernel, testing::ValuesIn(test::instruction_sets()),
                         test::instruction_set_name);

constexpr PhiloxState kState{.seed = 0x123456789abcdef0, .subsequence = 77, .offset = 0xffffffe0};

TEST_P(RandomKernel, DrawsTheBitsOfTheReferenceDefinition) {
  const Tensor out = Tensor::empty({1003});
  cpu_backend().random().uniform(Context::current().stream(Device::cpu()), out, 0, 1, kState);
  const auto got = out.to_vector<float>();
  for (std::uint64_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i], uniform_from_bits(kState.bits(i))) << i;
  }
}

TEST_P(RandomKernel, GivesTheSameNormalFloatsAsTheBestInstructionSet) {
  const auto draw = [] {
    const Tensor out = Tensor::empty({5000});
    cpu_backend().random().normal(Context::current().stream(Device::cpu()), out, 0, 1, kState);
    return out.to_vector<float>();
  };
  const auto here = draw();
  TearDown();  // back to the best one
  EXPECT_EQ(here, draw());
}

TEST_P(RandomKernel, DropsTheSameElementsInEveryDtype) {
  std::vector<bool> first;
  for (const DType dtype : {f32, f64, bf16, f16}) {
    const Tensor in = Tensor::ones({700}, {dtype});
    const Tensor out = Tensor::empty({700}, {dtype});
    cpu_backend().random().dropout(Context::current().stream(Device::cpu()), out, in, 0.25, kState);
    std::vector<bool> dropped;
    for (const double value : out.to_vector<double>()) dropped.push_back(value == 0);
    if (first.empty()) first = dropped;
    EXPECT_EQ(dropped, first);
  }
  for (std::uint64_t i = 0; i < first.size(); ++i) {
    EXPECT_EQ(first[i], uniform_from_bits(kState.bits(i)) < 0.25f);
  }
}

}  // namespace
}  // namespace cohort::backend
