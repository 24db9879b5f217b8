#include "cohort/ops/loss.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "cohort/autograd/gradcheck.h"
#include "cohort/ops/shape.h"
#include "support/parity.h"
#include "support/values.h"

namespace cohort {
namespace {

using test::expect_parity;
using test::message_of;
using test::same_bits;
using test::values;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;

struct Named {
  Reduction reduction;
  const char* name;
};
constexpr Named kReductions[] = {
    {Reduction::none, "none"}, {Reduction::mean, "mean"}, {Reduction::sum, "sum"}};

TEST(CrossEntropy, AgreesWithPyTorch) {
  const test::Reference reference("loss");
  for (const auto& [reduction, name] : kReductions) {
    for (const auto& [smoothing, suffix] :
         {std::pair{0.0, "0.0"}, std::pair{0.1, "0.1"}, std::pair{1.0, "1.0"}}) {
      CrossEntropyOptions options;
      options.reduction = reduction;
      options.label_smoothing = smoothing;
      expect_parity(reference, str("cross_entropy.", name, ".", suffix),
                    [&](auto& in) { return cross_entropy(in[0], in[1], options); });
    }
  }
  expect_parity(reference, "cross_entropy.wide",
                [](auto& in) { return cross_entropy(in[0], in[1]); });
  expect_parity(reference, "cross_entropy.ignored",
                [](auto& in) { return cross_entropy(in[0], in[1], {.ignore_index = 1}); });
}

TEST(CrossEntropy, GradientsAreThoseOfCentralDifferences) {
  const Tensor targets = Tensor::from<std::int64_t>({2, 0, -100, 1}, {4});
  for (const auto& named : kReductions) {
    for (const double smoothing : {0.0, 0.3}) {
      const CrossEntropyOptions options{-100, smoothing, named.reduction};
      for (const int classes : {3, 37}) {
        EXPECT_NO_THROW(gradcheck(
            [&](const Tensors& in) { return Tensors{cross_entropy(in[0], targets, options)}; },
            {values({4, classes})}));
      }
    }
  }
  const Tensor one = Tensor::from<std::int32_t>({0, 0, 0, 0}, {2, 2});
  EXPECT_NO_THROW(gradcheck([&](const Tensors& in) { return Tensors{cross_entropy(in[0], one)}; },
                            {values({2, 2, 1})}));
  EXPECT_NO_THROW(gradcheck(
      [&](const Tensors& in) {
        return Tensors{cross_entropy(transpose(in[0], 0, 1), narrow(targets, 0, 0, 2))};
      },
      {values({3, 2})}));
}

TEST(CrossEntropy, LargeLogitsDoNotOverflow) {
  const Tensor logits = Tensor::from<float>({1000, 0, -1000, 1000}, {2, 2});
  const Tensor loss = cross_entropy(logits, Tensor::from<std::int64_t>({0, 0}, {2}),
                                    {.reduction = Reduction::none});
  EXPECT_EQ(loss.to_vector<float>(), (std::vector<float>{0, 2000}));
}

TEST(CrossEntropy, TheMeanOverNoRowsIsNotANumber) {
  const Tensor ignored = Tensor::from<std::int64_t>({-100}, {1});
  EXPECT_TRUE(std::isnan(cross_entropy(values({1, 3}, f32), ignored).item()));
  EXPECT_TRUE(std::isnan(cross_entropy(Tensor::zeros({0, 3}), Tensor::zeros({0}, {i64})).item()));
  EXPECT_EQ(
      cross_entropy(Tensor::zeros({0, 3}), Tensor::zeros({0}, {i64}), {.reduction = Reduction::sum})
          .item(),
      0);
}

TEST(CrossEntropy, HalfPrecisionIsComputedInF32AndRoundedOnce) {
  const Tensor targets = Tensor::from<std::int64_t>({2, 0}, {2});
  const Tensor logits = values({2, 40}, bf16).set_requires_grad(true);
  const Tensor wide = logits.detach().to(f32).set_requires_grad(true);
  const Tensor loss = cross_entropy(logits, targets);
  const Tensor exact = cross_entropy(wide, targets);
  EXPECT_TRUE(same_bits(loss, exact.detach().to(bf16)));
  loss.backward();
  exact.backward();
  EXPECT_TRUE(same_bits(logits.grad(), wide.grad().to(bf16)));
}

TEST(CrossEntropy, ATargetOutOfRangeIsNamedWithItsRow) {
  const Tensor logits = Tensor::zeros({3, 4});
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                cross_entropy(logits, Tensor::from<std::int64_t>({0, 4, 1}, {3}));
              }),
              testing::AllOf(HasSubstr("target 4"), HasSubstr("row 1"), HasSubstr("[0, 4)")));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                cross_entropy(logits, Tensor::from<std::int32_t>({0, 3, -1}, {3}));
              }),
              testing::AllOf(HasSubstr("target -1"), HasSubstr("row 2")));
}

TEST(CrossEntropy, MisuseSaysWhatDoesNotFit) {
  const Tensor logits = Tensor::zeros({3, 4});
  EXPECT_THAT(message_of<ShapeError>([&] { cross_entropy(logits, Tensor::zeros({4}, {i64})); }),
              HasSubstr("needs [3]"));
  EXPECT_THAT(message_of<DTypeError>([&] { cross_entropy(logits, Tensor::zeros({3})); }),
              HasSubstr("f32"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                cross_entropy(logits, Tensor::zeros({3}, {i64}), {.label_smoothing = 1.5});
              }),
              HasSubstr("1.5"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                cross_entropy(Tensor::zeros({3, 0}), Tensor::zeros({3}, {i64}));
              }),
              HasSubstr("no classes"));
}

TEST(MseLoss, AgreesWithPyTorch) {
  const test::Reference reference("loss");
  for (const auto& named : kReductions) {
    expect_parity(reference, str("mse_loss.", named.name),
                  [&](auto& in) { return mse_loss(in[0], in[1], named.reduction); });
  }
}

TEST(MseLoss, RefusesDifferentShapes) {
  EXPECT_THAT(message_of<ShapeError>([] { mse_loss(Tensor::zeros({2}), Tensor::zeros({1})); }),
              HasSubstr("[2] and [1]"));
}

}  // namespace
}  // namespace cohort
