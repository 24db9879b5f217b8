#include "cohort/optim/clip_grad.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

#include "cohort/core/error.h"

namespace cohort::optim {
namespace {

using testing::ElementsAre;
using testing::FloatNear;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

Tensor with_gradient(std::vector<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  Tensor param = Tensor::zeros({count}, {.requires_grad = true});
  param.set_grad(Tensor::from(values, {count}));
  return param;
}

TEST(ClipGradNorm, ScalesAllGradientsAsOneVectorAndReturnsTheNormTheyHad) {
  const std::vector<Tensor> params{with_gradient({3, 0}), with_gradient({0, -4, 12})};
  EXPECT_DOUBLE_EQ(clip_grad_norm_(params, 6.5), 13);
  EXPECT_THAT(params[0].grad().to_vector<float>(), ElementsAre(FloatNear(1.5f, 1e-5f), 0));
  EXPECT_THAT(params[1].grad().to_vector<float>(),
              ElementsAre(0, FloatNear(-2, 1e-5f), FloatNear(6, 1e-5f)));
}

TEST(ClipGradNorm, LeavesSmallGradientsAsTheyAre) {
  const std::vector<Tensor> params{with_gradient({0.3f, -0.4f})};
  EXPECT_NEAR(clip_grad_norm_(params, 1), 0.5, 1e-7);
  EXPECT_THAT(params[0].grad().to_vector<float>(), ElementsAre(0.3f, -0.4f));
}

TEST(ClipGradNorm, KnowsAnyPositiveNorm) {
  const std::vector<Tensor> params{with_gradient({1, -2}), with_gradient({5})};
  EXPECT_DOUBLE_EQ(grad_norm(params, 1), 8);
  EXPECT_DOUBLE_EQ(grad_norm(params, kInfinity), 5);
  EXPECT_NEAR(grad_norm(params, 3), std::cbrt(1 + 8 + 125), 1e-14);
  EXPECT_NEAR(grad_norm(params, 0.5), std::pow(1 + std::sqrt(2.) + std::sqrt(5.), 2), 1e-13);
  EXPECT_DOUBLE_EQ(clip_grad_norm_(params, 2.5, {.norm_type = kInfinity}), 5);
  EXPECT_THAT(params[1].grad().to_vector<float>(), ElementsAre(FloatNear(2.5, 1e-5f)));
  for (const double bad : {0., -1., std::nan("")}) {
    EXPECT_THROW(grad_norm(params, bad), InvalidArgument);
  }
}

TEST(ClipGradNorm, DoesNotDependOnHowTheParametersAreCutUp) {
  std::vector<float> values;
  for (int i = 0; i < 1000; ++i) {
    values.push_back(std::ldexp(std::sin(static_cast<float>(i)), i % 40 - 20));
  }
  const std::vector<Tensor> whole{with_gradient(values)};
  std::vector<Tensor> pieces;
  for (std::size_t i = 0; i < values.size(); i += 37) {
    const std::size_t end = std::min(i + 37, values.size());
    pieces.insert(pieces.begin(),
                  with_gradient({values.begin() + static_cast<std::ptrdiff_t>(i),
                                 values.begin() + static_cast<std::ptrdiff_t>(end)}));
  }
  for (const double p : {0.5, 1., 2., 3., 16., kInfinity}) {
    EXPECT_EQ(grad_norm(pieces, p), grad_norm(whole, p)) << p;
  }
}

TEST(ClipGradNorm, PassesOverParametersWithoutGradient) {
  const Tensor without = Tensor::zeros({2}, {.requires_grad = true});
  EXPECT_EQ(clip_grad_norm_({without}, 1), 0);
  EXPECT_EQ(clip_grad_norm_({}, 1), 0);
  EXPECT_DOUBLE_EQ(clip_grad_norm_({without, with_gradient({2})}, 5), 2);
  EXPECT_FALSE(without.grad().defined());
}

class NonFinite : public testing::TestWithParam<double> {};
INSTANTIATE_TEST_SUITE_P(Norms, NonFinite, testing::Values(0.5, 1., 2., 3., kInfinity));

TEST_P(NonFinite, NormsAreReportedAndAnErrorOnRequest) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  const std::vector<Tensor> infinite{with_gradient({1}), with_gradient({-infinity})};
  const std::vector<Tensor> undefined{with_gradient({nan, 1}), with_gradient({2})};
  EXPECT_EQ(grad_norm(infinite, GetParam()), kInfinity);
  EXPECT_TRUE(std::isnan(grad_norm(undefined, GetParam())));
  for (const auto& params : {infinite, undefined}) {
    EXPECT_THROW(clip_grad_norm_(params, 1, {.norm_type = GetParam(), .error_if_nonfinite = true}),
                 Error);
  }
  EXPECT_EQ(infinite[0].grad().item<float>(), 1) << "changed before the error";
  clip_grad_norm_(undefined, 1, {.norm_type = GetParam()});
  EXPECT_TRUE(std::isnan(undefined[1].grad().item<float>())) << "NaN must not be hidden";
}

TEST(ClipGradNorm, RefusesANegativeBound) {
  EXPECT_THROW(clip_grad_norm_({with_gradient({1})}, -1), InvalidArgument);
}

TEST(ClipGradValue, LimitsEachElement) {
  const std::vector<Tensor> params{with_gradient({-3, 0.5f, 2}), with_gradient({1})};
  clip_grad_value_(params, 1);
  EXPECT_THAT(params[0].grad().to_vector<float>(), ElementsAre(-1, 0.5f, 1));
  EXPECT_THAT(params[1].grad().to_vector<float>(), ElementsAre(1));
  EXPECT_THROW(clip_grad_value_(params, -1), InvalidArgument);
}

}  // namespace
}  // namespace cohort::optim
