#include "cohort/ops/embedding.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
#include "cohort/ops/reduce.h"
#include "cohort/ops/shape.h"
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

TEST(Embedding, AgreesWithPyTorch) {
  const test::Reference reference("embedding");
  for (const char* name : {"embedding.line", "embedding.block"}) {
    expect_parity(reference, name, [](auto& in) { return embedding(in[0], in[1]); });
  }
}

TEST(Embedding, GradientsAreThoseOfCentralDifferences) {
  for (const Tensor& indices :
       {Tensor::from<std::int64_t>({2, 0, 2}, {3}), Tensor::from<std::int32_t>({1}, {1, 1}),
        Tensor::zeros({0}, {i64}),
        transpose(Tensor::from<std::int64_t>({0, 1, 2, 0}, {2, 2}), 0, 1)}) {
    EXPECT_NO_THROW(gradcheck([&](const Tensors& in) { return Tensors{embedding(indices, in[0])}; },
                              {values({3, 2})}));
  }
}

TEST(Embedding, TheGradientIsAddedToItsDestination) {
  const Tensor weight = values({3, 2}, f32).set_requires_grad(true);
  const Tensor bucket = Tensor::zeros({6});
  set_grad_destination(weight, bucket.reshape({3, 2}));
  const Tensor indices = Tensor::from<std::int64_t>({2, 0, 2}, {3});
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(backward_with_stats({sum(embedding(indices, weight))}).direct_writes, 1);
  }
  EXPECT_THAT(bucket.to_vector<float>(), ElementsAre(2, 2, 0, 0, 4, 4));
}

TEST(Embedding, HalfPrecisionGradientsAreSummedInF32) {
  // In bf16, 256 + 1 is 256: adding one by one would lose every one of them.
  const Tensor weight = Tensor::zeros({1, 1}, {bf16}).set_requires_grad(true);
  const Tensor out = embedding(Tensor::zeros({9}, {i64}), weight);
  const Tensor grad = Tensor::from<float>({256, 1, 1, 1, 1, 1, 1, 1, 1}, {9, 1}).to(bf16);
  out.backward(grad);
  EXPECT_EQ(weight.grad().item(), 264);
}

TEST(Embedding, AnIndexOutOfRangeIsNamedWithItsPosition) {
  const Tensor weight = Tensor::zeros({3, 2});
  EXPECT_THAT(message_of<InvalidArgument>([&] {
                embedding(Tensor::from<std::int64_t>({0, 3}, {2}), weight);
              }),
              testing::AllOf(HasSubstr("index 3"), HasSubstr("position 1"), HasSubstr("[0, 3)")));
  EXPECT_THAT(message_of<InvalidArgument>(
                  [&] { embedding(Tensor::from<std::int32_t>({-1}, {1}), weight); }),
              HasSubstr("index -1"));
}

TEST(Embedding, MisuseSaysWhatDoesNotFit) {
  EXPECT_THAT(message_of<DTypeError>([] {
                embedding(Tensor::zeros({1}), Tensor::zeros({1, 1}));
              }),
              HasSubstr("f32"));
  EXPECT_THAT(
      message_of<ShapeError>([] { embedding(Tensor::zeros({1}, {i64}), Tensor::zeros({1})); }),
      HasSubstr("[1]"));
}

}  // namespace
}  // namespace cohort
