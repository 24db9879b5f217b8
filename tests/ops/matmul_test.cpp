#include "cohort/ops/matmul.h"

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

Tensors product(const Tensors& in) {
  return {matmul(in[0], in[1])};
}

Tensors layer(const Tensors& in) {
  return {linear(in[0], in[1], in.size() > 2 ? in[2] : Tensor())};
}

TEST(Matmul, AgreesWithPyTorch) {
  const test::Reference reference("matmul");
  for (const char* name : {"square", "odd", "single", "batch", "broadcast", "tall", "edges"}) {
    expect_parity(reference, str("matmul.", name), [](auto& in) { return matmul(in[0], in[1]); });
  }
  expect_parity(reference, "matmul.transposed_a",
                [](auto& in) { return matmul(transpose(in[0], 0, 1), in[1]); });
  expect_parity(reference, "matmul.transposed_b",
                [](auto& in) { return matmul(in[0], transpose(in[1], 0, 1)); });
}

TEST(Matmul, HalfPrecisionIsAccumulatedInF32AndRoundedOnce) {
  const test::Reference reference("matmul");
  for (const char* name : {"matmul.bf16", "matmul.f16"}) {
    const Tensor a = reference.get(str(name, ".in0"));
    const Tensor b = reference.get(str(name, ".in1"));
    EXPECT_TRUE(same_bits(matmul(a, b), reference.get(str(name, ".out")))) << name;
    EXPECT_TRUE(same_bits(matmul(clone(transpose(a, 0, 1)).transpose(0, 1), b),
                          reference.get(str(name, ".out"))))
        << name << ", transposed in memory";
  }
}

TEST(Matmul, GradientsAreThoseOfCentralDifferences) {
  const struct {
    Shape a, b;
  } cases[] = {{{3, 4}, {4, 5}},          {{1, 1}, {1, 1}},    {{7, 1}, {1, 5}},
               {{2, 3, 4}, {2, 4, 3}},    {{2, 3, 4}, {4, 2}}, {{3, 4}, {2, 4, 2}},
               {{2, 1, 2, 3}, {3, 3, 2}}, {{0, 3}, {3, 2}},    {{2, 0}, {0, 3}}};
  for (const auto& c : cases) {
    SCOPED_TRACE(str(c.a, " x ", c.b));
    EXPECT_NO_THROW(gradcheck(product, {values(c.a), values(c.b, f64, 2)}));
  }
}

TEST(Matmul, GradientsFlowThroughTransposedAndSlicedOperands) {
  const auto gradients_hold = [](auto function, const Shape& a, const Shape& b) {
    EXPECT_NO_THROW(gradcheck([&](const Tensors& in) { return Tensors{function(in[0], in[1])}; },
                              {values(a), values(b, f64, 2)}));
  };
  gradients_hold([](const Tensor& a, const Tensor& b) { return matmul(transpose(a, 0, 1), b); },
                 {4, 3}, {4, 2});
  gradients_hold([](const Tensor& a, const Tensor& b) { return matmul(a, transpose(b, 1, 2)); },
                 {2, 3, 4}, {2, 5, 4});
  gradients_hold([](const Tensor& a, const Tensor& b) { return matmul(narrow(a, 1, 1, 2), b); },
                 {3, 4}, {2, 2});
  gradients_hold(
      [](const Tensor& a, const Tensor& b) {
        return matmul(permute(a, {1, 2, 0}), narrow(b, 0, 0, 2));  // no stride of 1 in the rows
      },
      {2, 3, 4}, {3, 2});
}

TEST(Matmul, AProductOfATensorWithItselfHasBothGradients) {
  EXPECT_NO_THROW(
      gradcheck([](const Tensors& in) { return Tensors{matmul(in[0], in[0])}; }, {values({3, 3})}));
}

TEST(Matmul, TransposedOperandsAreReadInPlace) {
  const Tensor a = values({5, 3}, f32);
  const Tensor b = values({5, 4}, f32, 2);
  const std::int64_t before = memory_stats().allocations;
  const Tensor c = matmul(transpose(a, 0, 1), b);
  EXPECT_EQ(memory_stats().allocations - before, 1) << "only the result is allocated";
  EXPECT_TRUE(close(c, matmul(clone(transpose(a, 0, 1)), b), 1e-6, 1e-6));
}

TEST(Matmul, AnInnerSizeOfZeroGivesZeros) {
  const Tensor out = matmul(Tensor::zeros({2, 0}), Tensor::zeros({0, 3}));
  EXPECT_TRUE(same_bits(out, Tensor::zeros({2, 3})));
}

TEST(Matmul, MisuseSaysWhatDoesNotFit) {
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_THAT(message_of<ShapeError>([&] { matmul(a, a); }), HasSubstr("[2, 3] and [2, 3]"));
  EXPECT_THAT(message_of<ShapeError>([&] { matmul(a, Tensor::zeros({3})); }), HasSubstr("[3]"));
  EXPECT_THAT(message_of<DTypeError>([&] {
                matmul(a, Tensor::zeros({3, 2}, {f64}));
              }),
              HasSubstr("f32 and f64"));
  EXPECT_THAT(message_of<DTypeError>([] {
                matmul(Tensor::zeros({1, 1}, {i64}), Tensor::zeros({1, 1}, {i64}));
              }),
              HasSubstr("floating"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                matmul(Tensor::zeros({2, 2, 3}), Tensor::zeros({3, 3, 2}));
              }),
              HasSubstr("[3]"));
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                matmul(a, Tensor::empty({3, 2}, {f32, Device::meta()}));
              }),
              HasSubstr("meta"));
}

TEST(Linear, AgreesWithPyTorch) {
  const test::Reference reference("matmul");
  for (const char* name : {"plain", "bias", "cube", "vector"}) {
    expect_parity(reference, str("linear.", name), [](auto& in) { return layer(in)[0]; });
  }
}

TEST(Linear, GradientsAreThoseOfCentralDifferences) {
  for (const Shape& x : {Shape{5, 3}, Shape{1, 3}, Shape{2, 2, 3}, Shape{3}, Shape{0, 3}}) {
    SCOPED_TRACE(str(x));
    EXPECT_NO_THROW(gradcheck(layer, {values(x), values({4, 3}, f64, 2), values({4}, f64, 3)}));
    EXPECT_NO_THROW(gradcheck(layer, {values(x), values({4, 3}, f64, 2)}));
  }
  EXPECT_NO_THROW(
      gradcheck([](const Tensors& in) { return Tensors{linear(transpose(in[0], 0, 1), in[1])}; },
                {values({3, 5}), values({4, 3}, f64, 2)}));
}

TEST(Linear, ParametersGradientsAreBornInTheirDestinations) {
  const Tensor x = values({6, 5}, f32);
  const Tensor weight = values({4, 5}, f32, 2).set_requires_grad(true);
  const Tensor bias = values({4}, f32, 3).set_requires_grad(true);
  const Tensor bucket = Tensor::zeros({24});
  set_grad_destination(weight, narrow(bucket, 0, 0, 20).reshape({4, 5}));
  set_grad_destination(bias, narrow(bucket, 0, 20, 4));
  const auto step = [&] { return backward_with_stats({sum(linear(x, weight, bias))}); };
  EXPECT_EQ(step().direct_writes, 2);
  const std::vector<float> once = bucket.to_vector<float>();
  EXPECT_EQ(once[23], 6);
  EXPECT_EQ(step().direct_writes, 2) << "a second backward adds";
  const std::vector<float> twice = bucket.to_vector<float>();
  for (std::size_t i = 0; i < once.size(); ++i) EXPECT_NEAR(twice[i], 2 * once[i], 1e-5) << i;
}

TEST(Linear, OneWeightUsedTwiceSumsItsGradients) {
  EXPECT_NO_THROW(
      gradcheck([](const Tensors& in) { return Tensors{linear(linear(in[0], in[1]), in[1])}; },
                {values({2, 3}), values({3, 3}, f64, 2)}));
}

TEST(Linear, ARowsBitsDoNotDependOnItsNeighbours) {
  const Tensor x = values({64, 96}, f32);
  const Tensor weight = values({80, 96}, f32, 2);
  const Tensor bias = values({80}, f32, 3);
  const Tensor all = linear(x, weight, bias);
  EXPECT_TRUE(same_bits(all, linear(clone(x), clone(weight), bias)));
  const Tensor other = cat({narrow(x, 0, 0, 32), values({32, 96}, f32, 4)});
  EXPECT_TRUE(same_bits(narrow(linear(other, weight, bias), 0, 0, 32), narrow(all, 0, 0, 32)));
}

TEST(Linear, MisuseSaysWhatDoesNotFit) {
  const Tensor x = Tensor::zeros({2, 3});
  EXPECT_THAT(message_of<ShapeError>([&] {
                linear(x, Tensor::zeros({3, 2}));
              }),
              HasSubstr("[2, 3] and [3, 2]"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                linear(x, Tensor::zeros({4, 3}), Tensor::zeros({3}));
              }),
              HasSubstr("bias [3]"));
  EXPECT_THAT(message_of<DTypeError>([&] {
                linear(x, Tensor::zeros({4, 3}, {bf16}));
              }),
              HasSubstr("f32 and bf16"));
}

TEST(Linear, MetaTensorsGetShapesAndGradients) {
  const TensorOptions meta{f32, Device::meta()};
  const Tensor weight = Tensor::empty({4, 3}, meta).set_requires_grad(true);
  const Tensor out = linear(Tensor::empty({2, 3}, meta), weight);
  EXPECT_EQ(out.shape(), (Shape{2, 4}));
  out.backward(Tensor::empty({2, 4}, meta));
  EXPECT_EQ(weight.grad().shape(), (Shape{4, 3}));
}

}  // namespace
}  // namespace cohort
