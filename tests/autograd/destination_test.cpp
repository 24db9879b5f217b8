// Gradients that are born where they belong (set_grad_destination).

#include <gtest/gtest.h>

#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/ops/ops.h"

namespace cohort {
namespace {

using Values = std::vector<float>;

// A weight [2, 3] whose gradient is to lie in the middle of a bucket of 12 elements.
class DestinationTest : public testing::Test {
 protected:
  Tensor bucket = Tensor::full({12}, -1);
  Tensor slice = bucket.as_strided({2, 3}, {3, 1}, 4);
  Tensor weight = Tensor::ones({2, 3}).set_requires_grad(true);
  Tensor x = Tensor::from<float>({1, 2, 3}, {1, 3});

  BackwardStats step(double scale = 1) {
    return backward_with_stats({sum(linear(x, weight)) * scale});
  }
  Values grad() const { return weight.grad().to_vector<float>(); }
};

TEST_F(DestinationTest, TheFirstGradientIsWrittenThereWithoutACopy) {
  set_grad_destination(weight, slice);
  const BackwardStats stats = step();
  EXPECT_EQ(stats.direct_writes, 1);
  EXPECT_EQ(stats.temporaries, 0);
  EXPECT_TRUE(weight.grad().is_same(grad_destination(weight)));
  EXPECT_EQ(bucket.to_vector<float>(), (Values{-1, -1, -1, -1, 1, 2, 3, 1, 2, 3, -1, -1}));
}

TEST_F(DestinationTest, LaterGradientsAreAddedThere) {
  set_grad_destination(weight, slice);
  step();
  const BackwardStats stats = step(10);
  EXPECT_EQ(stats.direct_writes, 1);
  EXPECT_EQ(grad(), (Values{11, 22, 33, 11, 22, 33}));
  EXPECT_EQ(bucket.to_vector<float>()[4], 11);
}

TEST_F(DestinationTest, AfterClearingTheGradientItIsOverwritten) {
  set_grad_destination(weight, slice);
  step();
  weight.set_grad({});
  step(2);
  EXPECT_EQ(grad(), (Values{2, 4, 6, 2, 4, 6}));
}

TEST_F(DestinationTest, TwoUsesOfALeafAddFromATemporary) {
  set_grad_destination(weight, slice);
  const BackwardStats stats =
      backward_with_stats({sum(linear(x, weight)) + sum(linear(x * 2.0, weight))});
  EXPECT_EQ(stats.direct_writes, 0);
  EXPECT_EQ(stats.temporaries, 1);
  EXPECT_TRUE(weight.grad().is_same(grad_destination(weight)));
  EXPECT_EQ(grad(), (Values{3, 6, 9, 3, 6, 9}));
}

TEST_F(DestinationTest, ATensorHookForcesATemporary) {
  set_grad_destination(weight, slice);
  register_hook(weight, [](const Tensor& grad) { return grad * 2.0; });
  const BackwardStats stats = step();
  EXPECT_EQ(stats.direct_writes, 0);
  EXPECT_EQ(grad(), (Values{2, 4, 6, 2, 4, 6}));
  EXPECT_EQ(bucket.to_vector<float>()[4], 2);
}

TEST_F(DestinationTest, AnExistingGradientMovesIn) {
  step();
  set_grad_destination(weight, slice);
  EXPECT_EQ(bucket.to_vector<float>()[5], 2);
  step(10);
  EXPECT_EQ(grad(), (Values{11, 22, 33, 11, 22, 33}));
}

TEST_F(DestinationTest, AGradientAssignedByTheUserIsAddedToAndBecomesTheDestinationAgain) {
  set_grad_destination(weight, slice);
  step();
  weight.set_grad(Tensor::full({2, 3}, 100));
  step();
  EXPECT_TRUE(weight.grad().is_same(grad_destination(weight)));
  EXPECT_EQ(grad(), (Values{101, 102, 103, 101, 102, 103}));
}

TEST_F(DestinationTest, MovesToAnotherPlaceWithItsGradient) {
  set_grad_destination(weight, slice);
  step();
  const Tensor other = Tensor::zeros({2, 3});
  set_grad_destination(weight, other);
  EXPECT_TRUE(weight.grad().is_same(grad_destination(weight)));
  step();
  EXPECT_EQ(other.to_vector<float>(), (Values{2, 4, 6, 2, 4, 6}));
  EXPECT_EQ(bucket.to_vector<float>()[4], 1);
}

TEST_F(DestinationTest, MustFitTheLeaf) {
  EXPECT_THROW(set_grad_destination(weight, Tensor::zeros({3, 2})), ShapeError);
  EXPECT_THROW(set_grad_destination(weight, Tensor::zeros({2, 3}, {.dtype = f64})), DTypeError);
  EXPECT_THROW(set_grad_destination(x, Tensor::zeros({1, 3})), AutogradError);
}

TEST_F(DestinationTest, GradLeavesDestinationsAlone) {
  set_grad_destination(weight, slice);
  const auto grads = cohort::grad({sum(linear(x, weight))}, {weight});
  EXPECT_EQ(grads[0].to_vector<float>(), (Values{1, 2, 3, 1, 2, 3}));
  EXPECT_EQ(bucket.to_vector<float>()[4], -1);
}

TEST_F(DestinationTest, WithoutOneTheGradientOfAnInnerNodeIsTakenOverNotCopied) {
  const BackwardStats stats = step();
  EXPECT_EQ(stats.temporaries, 1);
  step();  // now added in place
  EXPECT_EQ(grad(), (Values{2, 4, 6, 2, 4, 6}));
}

}  // namespace
}  // namespace cohort
