#include "cohort/ops/dropout.h"

#include <gtest/gtest.h>

#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
#include "cohort/core/context.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort {
namespace {

TEST(Dropout, ZeroesElementsByTheirOwnNumbersAndScalesTheRest) {
  manual_seed(3);
  const PhiloxState state = Context::current().generator.state();
  const Tensor x = test::values({37, 29}, f32);
  const auto in = x.to_vector<float>();
  const auto out = dropout(x, 0.3).to_vector<float>();
  int dropped = 0;
  for (std::uint64_t i = 0; i < out.size(); ++i) {
    const bool drop = uniform_from_bits(state.bits(i)) < 0.3f;
    EXPECT_FLOAT_EQ(out[i], drop ? 0 : in[i] / 0.7f);
    dropped += drop ? 1 : 0;
  }
  EXPECT_NEAR(dropped, 0.3 * 37 * 29, 75);  // five deviations
}

TEST(Dropout, DrawsTheSameMaskAgainInBackward) {
  for (const DType dtype : {f32, f64, bf16}) {
    const Tensor x = Tensor::ones({1000}, {.dtype = dtype, .requires_grad = true});
    const Tensor out = dropout(x, 0.5);
    out.backward(Tensor::ones({1000}, {.dtype = dtype}));
    EXPECT_TRUE(test::same_bits(x.grad(), out.detach()));
  }
}

TEST(Dropout, GradientMatchesCentralDifferences) {
  const Generator start = Context::current().generator;
  gradcheck(
      [&](const std::vector<Tensor>& in) {
        Context::current().generator = start;  // the same mask in every evaluation
        return std::vector<Tensor>{dropout(in[0], 0.4)};
      },
      {test::values({4, 5})});
}

TEST(Dropout, KeepsNoMaskInMemory) {
  const Tensor x = Tensor::ones({1 << 16}, {.requires_grad = true});
  const std::int64_t before = memory_stats().live_total;
  const Tensor out = dropout(x, 0.5);
  EXPECT_EQ(memory_stats().live_total - before, static_cast<std::int64_t>(out.bytes()));
}

TEST(Dropout, ReadsStridedInputsInRowMajorOrder) {
  const Tensor x = test::values({6, 7}, f32);
  const Tensor swapped = x.as_strided({7, 6}, {1, 7}, 0);
  const Tensor packed = Tensor::empty({7, 6}).copy_(swapped);
  const Generator start = Context::current().generator;
  const Tensor a = dropout(swapped, 0.5);
  Context::current().generator = start;
  EXPECT_TRUE(test::same_bits(a, dropout(packed, 0.5)));
}

TEST(Dropout, HasTwoEnds) {
  const Tensor x = Tensor::ones({10});
  EXPECT_TRUE(dropout(x, 0).is_same(x));
  EXPECT_TRUE(dropout(x, 0.9, /*training=*/false).is_same(x));
  EXPECT_EQ(dropout(x, 1).to_vector<float>(), std::vector<float>(10, 0.f));
  EXPECT_THROW(dropout(x, 1.5), InvalidArgument);
  EXPECT_THROW(dropout(x, -0.1), InvalidArgument);
  EXPECT_THROW(dropout(Tensor::ones({2}, {.dtype = i32}), 0.5), DTypeError);
}

}  // namespace
}  // namespace cohort
