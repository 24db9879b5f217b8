#include "cohort/ops/norm.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/reduce.h"
#include "cohort/ops/shape.h"
#include "support/parity.h"
#include "support/values.h"

namespace cohort {
namespace {

using test::close;
using test::expect_parity;
using test::message_of;
using test::same_bits;
using test::values;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;

Tensor at_or_none(const Tensors& in, std::size_t i) {
  return i < in.size() ? in[i] : Tensor();
}

TEST(BatchNorm, AgreesWithPyTorch) {
  const test::Reference reference("norm");
  for (const char* shape : {"flat", "images", "wide"}) {
    for (const bool training : {true, false}) {
      const std::string name = str("batch_norm.", shape, training ? ".train" : ".eval");
      const Tensor mean = clone(reference.get(name + ".mean_before"));
      const Tensor var = clone(reference.get(name + ".var_before"));
      expect_parity(
          reference, name,
          [&](auto& in) {
            return batch_norm(in[0], in[1], in[2], mean, var, {.training = training});
          },
          1e-4, 1e-5);
      EXPECT_TRUE(close(mean, reference.get(name + ".mean_after"), 1e-5, 1e-6)) << name;
      EXPECT_TRUE(close(var, reference.get(name + ".var_after"), 1e-5, 1e-6)) << name;
    }
  }
  expect_parity(reference, "batch_norm.plain",
                [](auto& in) { return batch_norm(in[0], {}, {}, {}, {}); });
}

TEST(BatchNorm, GradientsAreThoseOfCentralDifferences) {
  const Tensor mean = values({3}, f64, 4).detach();
  const Tensor var = Tensor::full({3}, 0.7, {f64});
  for (const bool training : {true, false}) {
    for (const Shape& shape : {Shape{5, 3}, Shape{2, 3, 2, 1}, Shape{2, 3, 5, 7}}) {
      SCOPED_TRACE(str(shape, training ? " training" : " evaluating"));
      const auto run = [&](const Tensors& in) {
        return Tensors{batch_norm(in[0], at_or_none(in, 1), at_or_none(in, 2), clone(mean),
                                  clone(var), {.training = training})};
      };
      EXPECT_NO_THROW(gradcheck(run, {values(shape), values({3}, f64, 2), values({3}, f64, 3)}));
      EXPECT_NO_THROW(gradcheck(run, {values(shape)}));
    }
  }
  EXPECT_NO_THROW(gradcheck(
      [&](const Tensors& in) {
        return Tensors{batch_norm(permute(in[0], {0, 3, 1, 2}), in[1], in[2], {}, {})};
      },
      {values({2, 2, 2, 3}), values({3}, f64, 2), values({3}, f64, 3)}));
}

TEST(BatchNorm, AnEmptyBatchIsFineInEvaluation) {
  const Tensor ones = Tensor::ones({3});
  EXPECT_EQ(batch_norm(Tensor::zeros({0, 3}), {}, {}, ones, ones, {.training = false}).shape(),
            (Shape{0, 3}));
}

TEST(BatchNorm, StatisticsOfALargeOffsetStayExact) {
  // Mean 4096, deviation 1: squares minus the squared mean would lose all digits.
  const Tensor x = add(values({64, 2, 8, 8}, f32), 4096.0);
  const Tensor out = batch_norm(x, {}, {}, {}, {});
  const Tensor exact = batch_norm(x.to(f64), {}, {}, {}, {});
  EXPECT_TRUE(close(out.to(f64), exact, 1e-3, 2e-3));
}

TEST(BatchNorm, MisuseSaysWhatIsWrong) {
  const Tensor x = Tensor::zeros({1, 3});
  const Tensor c = Tensor::ones({3});
  EXPECT_THAT(message_of<InvalidArgument>([&] { batch_norm(x, {}, {}, {}, {}); }),
              HasSubstr("more than one value per channel"));
  EXPECT_THAT(
      message_of<InvalidArgument>([&] { batch_norm(x, {}, {}, {}, {}, {.training = false}); }),
      HasSubstr("needs running statistics"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { batch_norm(x, c, {}, c, c); }), HasSubstr("both"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                batch_norm(Tensor::zeros({2, 3, 4}), {}, {}, {}, {});
              }),
              HasSubstr("[2, 3, 4]"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                batch_norm(Tensor::zeros({2, 2}), {}, {}, c, c);
              }),
              HasSubstr("do not fit"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                batch_norm(Tensor::zeros({2, 2}), c, c, {}, {});
              }),
              HasSubstr("weight"));
}

TEST(LayerNorm, AgreesWithPyTorch) {
  const test::Reference reference("norm");
  expect_parity(
      reference, "layer_norm.row", [](auto& in) { return layer_norm(in[0], {7}, in[1], in[2]); },
      1e-4, 1e-5);
  expect_parity(reference, "layer_norm.block", [](auto& in) {
    return layer_norm(in[0], {3, 4}, in[1], in[2], 1e-3);
  });
  expect_parity(reference, "layer_norm.weight",
                [](auto& in) { return layer_norm(in[0], {70}, in[1]); });
  expect_parity(reference, "layer_norm.plain", [](auto& in) { return layer_norm(in[0], {6}); });
}

TEST(LayerNorm, GradientsAreThoseOfCentralDifferences) {
  for (const Shape& shape : {Shape{3, 5}, Shape{2, 3, 35}, Shape{4, 2}, Shape{0, 3}}) {
    SCOPED_TRACE(str(shape));
    const Shape width{shape.back()};
    const auto run = [&](const Tensors& in) {
      return Tensors{layer_norm(in[0], width, at_or_none(in, 1), at_or_none(in, 2))};
    };
    EXPECT_NO_THROW(gradcheck(run, {values(shape), values(width, f64, 2), values(width, f64, 3)}));
    EXPECT_NO_THROW(gradcheck(run, {values(shape), values(width, f64, 2)}));
    EXPECT_NO_THROW(gradcheck(run, {values(shape)}));
  }
  EXPECT_NO_THROW(gradcheck(
      [](const Tensors& in) { return Tensors{layer_norm(transpose(in[0], 0, 1), {4}, {}, in[1])}; },
      {values({4, 3}), values({4}, f64, 2)}));
}

TEST(LayerNorm, OneElementPerRowGivesTheBias) {
  const Tensor out = layer_norm(values({3, 1}, f32), {1}, Tensor::ones({1}), Tensor::full({1}, 2));
  EXPECT_EQ(out.to_vector<float>(), (std::vector<float>{2, 2, 2}));
}

TEST(LayerNorm, ParametersGradientsAreBornInTheirDestinations) {
  const Tensor weight = values({5}, f32).set_requires_grad(true);
  const Tensor bias = values({5}, f32, 2).set_requires_grad(true);
  const Tensor bucket = Tensor::zeros({10});
  set_grad_destination(weight, narrow(bucket, 0, 0, 5));
  set_grad_destination(bias, narrow(bucket, 0, 5, 5));
  const Tensor x = values({130, 5}, f32, 3);
  for (int i = 1; i <= 2; ++i) {
    EXPECT_EQ(backward_with_stats({sum(layer_norm(x, {5}, weight, bias))}).direct_writes, 2);
    EXPECT_EQ(bucket.to_vector<float>()[9], static_cast<float>(130 * i));
  }
}

TEST(LayerNorm, ARowsBitsDoNotDependOnWhereItLies) {
  const Tensor row = values({1, 45}, f32);
  const Tensor stacked = cat({values({2, 45}, f32, 2), row});
  EXPECT_TRUE(same_bits(layer_norm(row, {45}), narrow(layer_norm(stacked, {45}), 0, 2, 1)));
}

TEST(LayerNorm, HalfPrecisionIsComputedInF32AndRoundedOnce) {
  const Tensor x = values({3, 40}, bf16);
  EXPECT_TRUE(same_bits(layer_norm(x, {40}), layer_norm(x.to(f32), {40}).to(bf16)));
}

TEST(LayerNorm, MisuseSaysWhatDoesNotFit) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_THAT(message_of<ShapeError>([&] { layer_norm(x, {2}); }), HasSubstr("[2, 3]"));
  EXPECT_THAT(message_of<ShapeError>([&] { layer_norm(x, {}); }), HasSubstr("[]"));
  EXPECT_THAT(message_of<ShapeError>([&] { layer_norm(x, {3}, Tensor::zeros({2})); }),
              HasSubstr("weight of shape [2]"));
  EXPECT_THAT(message_of<DTypeError>([&] { layer_norm(x, {3}, Tensor::zeros({3}, {f64})); }),
              HasSubstr("f64"));
}

}  // namespace
}  // namespace cohort
