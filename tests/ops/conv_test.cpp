#include "cohort/ops/conv.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
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

struct Case {
  const char* name;
  Conv2dOptions options;
};

TEST(Conv2d, AgreesWithPyTorch) {
  const test::Reference reference("conv");
  const Case cases[] = {
      {"plain", {}},
      {"padded", {.padding = 1}},
      {"strided", {.stride = {2, 3}, .padding = {1, 0}}},
      {"dilated", {.padding = {2, 1}, .dilation = 2}},
      {"grouped", {.groups = 2}},
      {"depthwise", {.padding = 1, .groups = 4}},
      {"point", {}},
      {"cut", {.stride = 2}},
      {"blocked", {.padding = 1}},
      {"no_bias", {}},
  };
  for (const Case& c : cases) {
    expect_parity(
        reference, str("conv2d.", c.name),
        [&](auto& in) { return conv2d(in[0], in[1], in.size() > 2 ? in[2] : Tensor(), c.options); },
        1e-5, 1e-5);
  }
}

TEST(Conv2d, GradientsAreThoseOfCentralDifferences) {
  const struct {
    Shape x, weight;
    Conv2dOptions options;
  } cases[] = {
      {{2, 2, 4, 3}, {3, 2, 3, 2}, {}},
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {{1, 2, 5, 5}, {2, 2, 3, 3}, {.stride = 2, .padding = 1}},
      {{1, 4, 4, 5}, {2, 2, 2, 2}, {.padding = {1, 0}, .dilation = {2, 1}, .groups = 2}},
      {{0, 2, 4, 4}, {2, 2, 3, 3}, {}},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(str(c.x, " with ", c.weight));
    EXPECT_NO_THROW(gradcheck(
        [&](const Tensors& in) { return Tensors{conv2d(in[0], in[1], in[2], c.options)}; },
        {values(c.x), values(c.weight, f64, 2), values({c.weight[0]}, f64, 3)}));
  }
  EXPECT_NO_THROW(gradcheck(
      [](const Tensors& in) {
        return Tensors{conv2d(permute(in[0], {0, 3, 1, 2}), transpose(in[1], 2, 3))};
      },
      {values({1, 4, 4, 2}), values({2, 2, 3, 2}, f64, 2)}));
}

// f32 goes through the library of the build, f64 through our own kernels: they check each other.
TEST(Conv2d, F32AgreesWithF64) {
  const Tensor x = values({3, 16, 9, 8}, f32);
  const Tensor weight = values({32, 16, 3, 3}, f32, 2);
  const Tensor bias = values({32}, f32, 3);
  Tensors narrow_leaves;
  Tensors wide_leaves;
  for (const Tensor& leaf : {x, weight, bias}) {
    narrow_leaves.push_back(clone(leaf).set_requires_grad(true));
    wide_leaves.push_back(leaf.to(f64).set_requires_grad(true));
  }
  const auto run = [](const Tensors& in) {
    return conv2d(in[0], in[1], in[2], {.stride = {1, 2}, .padding = 1});
  };
  const Tensor out = run(narrow_leaves);
  const Tensor exact = run(wide_leaves);
  EXPECT_TRUE(close(out.detach().to(f64), exact, 1e-5, 1e-5));
  const Tensor grad = values(out.shape(), f32, 4);
  out.backward(grad);
  exact.backward(grad.to(f64));
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(close(narrow_leaves[i].grad().to(f64), wide_leaves[i].grad(), 1e-4, 1e-4)) << i;
  }
}

TEST(Conv2d, HalfPrecisionIsAccumulatedInF32AndRoundedOnce) {
  const Tensor x = values({1, 2, 4, 4}, bf16);
  const Tensor weight = values({2, 2, 2, 2}, bf16, 2);
  EXPECT_TRUE(close(conv2d(x, weight), conv2d(x.to(f32), weight.to(f32)).to(bf16), 0.004, 1e-6));
}

TEST(Conv2d, ParametersGradientsAreBornInTheirDestinations) {
  const Tensor weight = values({16, 16, 2, 2}, f32).set_requires_grad(true);
  const Tensor bias = values({16}, f32, 2).set_requires_grad(true);
  const Tensor bucket = Tensor::zeros({1040});
  set_grad_destination(weight, narrow(bucket, 0, 0, 1024).reshape({16, 16, 2, 2}));
  set_grad_destination(bias, narrow(bucket, 0, 1024, 16));
  const Tensor x = values({2, 16, 5, 5}, f32, 3);
  const auto step = [&] { return backward_with_stats({sum(conv2d(x, weight, bias))}); };
  EXPECT_EQ(step().direct_writes, 2);
  const auto once = bucket.to_vector<float>();
  EXPECT_NEAR(once[1039], 32, 1e-4);
  EXPECT_EQ(step().direct_writes, 2) << "a second backward adds";
  const auto twice = bucket.to_vector<float>();
  for (std::size_t i = 0; i < once.size(); ++i) ASSERT_NEAR(twice[i], 2 * once[i], 1e-4) << i;
}

TEST(Conv2d, FrozenParametersGetNoGradient) {
  const Tensor weight = values({2, 2, 2, 2}, f32, 2);
  const Tensor bias = values({2}, f32, 3).set_requires_grad(true);
  const Tensor x = values({2, 2, 3, 3}, f32);
  sum(conv2d(x, weight, bias)).backward();
  EXPECT_EQ(bias.grad().to_vector<float>(), (std::vector<float>{8, 8}));
  EXPECT_FALSE(weight.grad().defined());
}

TEST(Conv2d, TheSameBitsEveryTime) {
  const Tensor x = values({4, 16, 7, 7}, f32);
  const Tensor weight = values({32, 16, 3, 3}, f32, 2);
  EXPECT_TRUE(same_bits(conv2d(x, weight), conv2d(clone(x), clone(weight))));
}

TEST(Conv2d, MisuseSaysWhatDoesNotFit) {
  const Tensor x = Tensor::zeros({1, 3, 4, 4});
  const Tensor weight = Tensor::zeros({2, 3, 3, 3});
  EXPECT_THAT(message_of<ShapeError>([&] {
                conv2d(x, Tensor::zeros({2, 2, 3, 3}));
              }),
              HasSubstr("[2, 2, 3, 3]"));
  EXPECT_THAT(message_of<ShapeError>([&] { conv2d(x, weight, {}, {.groups = 2}); }),
              HasSubstr("2 groups"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                conv2d(x, Tensor::zeros({2, 3, 5, 5}));
              }),
              HasSubstr("does not fit"));
  EXPECT_THAT(message_of<ShapeError>([&] { conv2d(x, weight, Tensor::zeros({3})); }),
              HasSubstr("bias [3]"));
  EXPECT_THAT(message_of<ShapeError>([&] {
                conv2d(Tensor::zeros({3, 4, 4}), weight);
              }),
              HasSubstr("[N, C, H, W]"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { conv2d(x, weight, {}, {.stride = 0}); }),
              HasSubstr("positive"));
  EXPECT_THAT(message_of<DTypeError>([&] {
                conv2d(x, Tensor::zeros({2, 3, 3, 3}, {f64}));
              }),
              HasSubstr("f64"));
}

struct Pool {
  const char* name;
  Pool2dOptions options;
};
const Pool kPools[] = {{"even", {}},
                       {"overlap", {.kernel = 3, .stride = 2, .padding = 1}},
                       {"cut", {.kernel = {2, 3}, .stride = {3, 2}}},
                       {"global", {.kernel = {4, 3}}}};

TEST(Pool2d, AgreesWithPyTorch) {
  const test::Reference reference("conv");
  for (const Pool& pool : kPools) {
    expect_parity(reference, str("max_pool2d.", pool.name),
                  [&](auto& in) { return max_pool2d(in[0], pool.options); });
    expect_parity(reference, str("avg_pool2d.", pool.name),
                  [&](auto& in) { return avg_pool2d(in[0], pool.options); });
  }
}

TEST(Pool2d, GradientsAreThoseOfCentralDifferences) {
  for (const Pool& pool : kPools) {
    for (const Shape& shape : {Shape{2, 1, 5, 6}, Shape{0, 2, 4, 4}}) {
      EXPECT_NO_THROW(gradcheck(
          [&](const Tensors& in) {
            return Tensors{max_pool2d(in[0], pool.options), avg_pool2d(in[0], pool.options)};
          },
          {values(shape)}))
          << pool.name;
    }
  }
  EXPECT_NO_THROW(
      gradcheck([](const Tensors& in) { return Tensors{max_pool2d(transpose(in[0], 2, 3))}; },
                {values({1, 2, 4, 6})}));
}

TEST(Pool2d, TheFirstOfEqualElementsGetsTheGradient) {
  const Tensor x = Tensor::ones({1, 1, 2, 2}).set_requires_grad(true);
  max_pool2d(x).backward(Tensor::full({1, 1, 1, 1}, 3));
  EXPECT_EQ(x.grad().to_vector<float>(), (std::vector<float>{3, 0, 0, 0}));
}

TEST(Pool2d, NotANumberWins) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int i = 0; i < 4; ++i) {
    std::vector<float> numbers{1, 2, 3, 4};
    numbers[static_cast<std::size_t>(i)] = nan;
    const double out = max_pool2d(Tensor::from(numbers, {1, 1, 2, 2})).item();
    EXPECT_TRUE(out != out) << i;
  }
}

TEST(Pool2d, MisuseSaysWhatIsWrong) {
  const Tensor x = Tensor::zeros({1, 1, 4, 4});
  EXPECT_THAT(message_of<InvalidArgument>([&] { max_pool2d(x, {.kernel = 2, .padding = 2}); }),
              HasSubstr("more than half"));
  EXPECT_THAT(message_of<ShapeError>([&] { avg_pool2d(x, {.kernel = 5}); }),
              HasSubstr("does not fit"));
  EXPECT_THAT(message_of<InvalidArgument>([&] { avg_pool2d(x, {.kernel = 0}); }),
              HasSubstr("positive"));
}

}  // namespace
}  // namespace cohort
