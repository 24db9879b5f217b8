#include "cohort/ops/shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/reduce.h"
#include "support/parity.h"
#include "support/values.h"

namespace cohort {
namespace {

using test::expect_parity;
using test::message_of;
using test::values;
using testing::ElementsAre;
using testing::HasSubstr;
using Tensors = std::vector<Tensor>;

TEST(Shape, AgreesWithPyTorch) {
  const test::Reference reference("shape");
  expect_parity(reference, "reshape.cut", [](auto& in) { return reshape(in[0], {2, -1, 3}); });
  expect_parity(reference, "reshape.transposed", [](auto& in) {
    return reshape(transpose(in[0], 0, 1), {4, 6});
  });
  expect_parity(reference, "flatten", [](auto& in) { return flatten(in[0], 1, 2); });
  expect_parity(reference, "transpose", [](auto& in) { return transpose(in[0], 0, 2); });
  expect_parity(reference, "permute", [](auto& in) { return permute(in[0], {2, 0, 1}); });
  expect_parity(reference, "expand", [](auto& in) { return expand(in[0], {2, 3, 4}); });
  expect_parity(reference, "squeeze", [](auto& in) { return squeeze(in[0], 1); });
  expect_parity(reference, "unsqueeze", [](auto& in) { return unsqueeze(in[0], -1); });
  expect_parity(reference, "narrow", [](auto& in) { return narrow(in[0], 1, 2, 3); });
  expect_parity(reference, "select", [](auto& in) { return select(in[0], 0, -2); });
  expect_parity(reference, "split", [](auto& in) {
    Tensors pieces = split(in[0], std::vector<std::int64_t>{1, 3, 2}, 1);
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      pieces[i] = mul(pieces[i], static_cast<double>(i + 2));
    }
    return cat(pieces, 1);
  });
  expect_parity(reference, "cat", [](auto& in) { return cat(in, 1); });
  expect_parity(reference, "stack", [](auto& in) { return stack(in, 1); });
}

TEST(Shape, GradientsAreThoseOfCentralDifferences) {
  const auto check = [](auto function, const Shape& shape) {
    SCOPED_TRACE(str(shape));
    EXPECT_NO_THROW(
        gradcheck([&](const Tensors& in) { return Tensors{function(in[0])}; }, {values(shape)}));
  };
  check([](const Tensor& a) { return reshape(a, {3, -1}); }, {2, 3, 1});
  check([](const Tensor& a) { return reshape(permute(a, {1, 0, 2}), {6, 2}); }, {2, 3, 2});
  check([](const Tensor& a) { return expand(a, {2, 3, 4}); }, {3, 1});
  check([](const Tensor& a) { return narrow(transpose(a, 0, 1), 0, 1, 2); }, {2, 5});
  check([](const Tensor& a) { return select(a, 1, 2); }, {2, 3, 2});
  check([](const Tensor& a) { return cat({a, a, narrow(a, 0, 0, 1)}, 0); }, {3, 2});
  check([](const Tensor& a) { return stack({a, transpose(a, 0, 1)}, -1); }, {2, 2});
  check([](const Tensor& a) { return clone(transpose(a, 0, 1)); }, {3, 2});
  check([](const Tensor& a) { return contiguous(expand(a, {2, 3})); }, {1, 3});
  EXPECT_NO_THROW(
      gradcheck([](const Tensors& in) { return split(in[0], 2, 1); }, {values({2, 5})}));
}

TEST(Shape, ViewsShareStorage) {
  const Tensor a = values({4, 6}, f32);
  for (const Tensor& b :
       {reshape(a, {2, 12}), view(a, {24}), flatten(a), transpose(a, 0, 1), permute(a, {1, 0}),
        expand(unsqueeze(a, 0), {3, 4, 6}), narrow(a, 1, 1, 2), select(a, 0, 3), split(a, 2)[1],
        reshape(transpose(a, 0, 1), {2, 3, 4})}) {
    EXPECT_EQ(&b.storage(), &a.storage()) << b.shape();
  }
  EXPECT_NE(&clone(a).storage(), &a.storage());
  EXPECT_NE(&reshape(transpose(a, 0, 1), {24}).storage(), &a.storage());
}

TEST(Shape, ATrivialChangeIsTheTensorItself) {
  const Tensor a = values({4, 6}, f32);
  EXPECT_TRUE(reshape(a, {4, -1}).is_same(a));
  EXPECT_TRUE(contiguous(a).is_same(a));
  EXPECT_TRUE(narrow(a, 0, 0, 4).is_same(a));
  EXPECT_TRUE(squeeze(a, 0).is_same(a));
}

TEST(Shape, ReshapeOfEvenlySpacedDimensionsIsAView) {
  const Tensor base = Tensor::arange(48).reshape({4, 3, 4});
  const Tensor part = narrow(base, 0, 1, 2);  // [2, 3, 4], contiguous in itself
  EXPECT_EQ(&reshape(part, {6, 4}).storage(), &base.storage());
  const Tensor columns = narrow(base, 2, 1, 2);  // rows of 2 out of 4
  const Tensor merged = view(columns, {12, 2});
  EXPECT_EQ(&merged.storage(), &base.storage());
  EXPECT_THAT(narrow(merged, 0, 3, 2).to_vector<std::int64_t>(), ElementsAre(13, 14, 17, 18));
  EXPECT_THAT(reshape(columns, {24}).to_vector<std::int64_t>(),
              testing::ElementsAreArray(clone(columns).to_vector<std::int64_t>()));
}

TEST(Shape, EmptyAndScalarTensorsHaveShapesToo) {
  EXPECT_EQ(reshape(Tensor::zeros({0, 3}), {3, 0}).shape(), (Shape{3, 0}));
  EXPECT_EQ(reshape(Tensor::zeros({1, 1}), {}).shape(), Shape{});
  EXPECT_EQ(flatten(Tensor::zeros({})).shape(), Shape{1});
  EXPECT_EQ(cat({Tensor::zeros({0, 2}), Tensor::ones({1, 2})}).shape(), (Shape{1, 2}));
  EXPECT_EQ(narrow(Tensor::zeros({3}), 0, 3, 0).numel(), 0);
  EXPECT_EQ(split(Tensor::zeros({0, 2}), 3).size(), 1u);
}

TEST(Shape, AGradientOfOneUnusedPieceIsZero) {
  const Tensor a = values({4});
  const Tensors pieces = split(a, 1);
  sum(mul(pieces[2], 3.0)).backward();
  EXPECT_THAT(a.grad().to_vector<double>(), ElementsAre(0, 0, 3, 0));
}

TEST(Shape, CatPromotesDtypesAndCastsTheGradientBack) {
  const Tensor a = values({2}, f32).set_requires_grad(true);
  const Tensor b = values({3}, f64, 2);
  const Tensor joined = cat({a, b});
  EXPECT_EQ(joined.dtype(), f64);
  sum(joined).backward();
  EXPECT_EQ(a.grad().dtype(), f32);
  EXPECT_THAT(a.grad().to_vector<float>(), ElementsAre(1, 1));
  EXPECT_EQ(cat({Tensor::arange(2), Tensor::ones({1})}).dtype(), f32);
}

TEST(Shape, MisuseSaysWhatDoesNotFit) {
  const Tensor a = Tensor::zeros({2, 3});
  EXPECT_THAT(message_of<ShapeError>([&] { reshape(a, {4, 2}); }), HasSubstr("[2, 3]"));
  EXPECT_THAT(message_of<ShapeError>([&] { reshape(a, {-1, -1}); }), HasSubstr("-1"));
  EXPECT_THAT(message_of<ShapeError>([&] { reshape(a, {4, -1}); }), HasSubstr("no size fits"));
  EXPECT_THAT(message_of<ShapeError>([&] { view(transpose(a, 0, 1), {6}); }),
              HasSubstr("use reshape"));
  EXPECT_THAT(message_of<ShapeError>([&] { expand(a, {2, 4}); }), HasSubstr("does not expand"));
  EXPECT_THAT(message_of<ShapeError>([&] { permute(a, {0}); }), HasSubstr("1 dimensions"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { permute(a, {0, 0}); }), HasSubstr("twice"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { transpose(a, 0, 2); }), HasSubstr("2"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { narrow(a, 1, 2, 2); }), HasSubstr("dimension 1"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { narrow(a, 1, -1, 2); }), HasSubstr("-1"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { select(a, 0, 2); }), HasSubstr("index 2"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                split(a, std::vector<std::int64_t>{1, 3}, 1);
              }),
              HasSubstr("add up to 4"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { split(a, 0); }), HasSubstr("not positive"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                cat({a, Tensor::zeros({3, 3})}, 1);
              }),
              HasSubstr("outside dimension 1"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                cat({a, Tensor::zeros({3})});
              }),
              HasSubstr("number of dimensions"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { cat({}); }), HasSubstr("nothing to join"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                stack({a, Tensor::zeros({3, 3})});
              }),
              HasSubstr("differ"));
}

TEST(Shape, MetaTensorsChangeShapeWithoutData) {
  const Tensor a = Tensor::empty({2, 3}, {f32, Device::meta()});
  EXPECT_EQ(cat({a, transpose(reshape(a, {3, 2}), 0, 1)}, 0).shape(), (Shape{4, 3}));
}

}  // namespace
}  // namespace cohort
