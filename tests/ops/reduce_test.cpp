#include "cohort/ops/reduce.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>

#include "cohort/autograd/autograd.h"
#include "cohort/autograd/gradcheck.h"
#include "cohort/ops/elementwise.h"
#include "support/parity.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort {
namespace {

using test::values;
using Tensors = std::vector<Tensor>;

const std::map<std::string, std::vector<int>>& dims_by_name() {
  static const std::map<std::string, std::vector<int>> map = {
      {"all", {0, 1, 2}}, {"first", {0}},  {"middle", {1}}, {"last", {-1}}, {"outer", {2, 0}},
      {"inner", {1, 2}},  {"integer", {}}, {"bool", {}},    {"bf16", {0}}};
  return map;
}

// The operation that a case of the reference file is about.
test::Operation operation_of(const std::string& name) {
  const std::string kind = name.substr(0, name.find('.'));
  if (kind == "norm") return [](const Tensors& in) { return l2_norm(in[0]); };
  const std::string detail = name.substr(kind.size() + 1);
  if (kind == "max" || kind == "argmax") {
    const int dim = std::stoi(detail);
    if (kind == "max") return [dim](const Tensors& in) { return max(in[0], dim); };
    return [dim](const Tensors& in) { return argmax(in[0], dim); };
  }
  const bool keep = detail.ends_with(".keep");
  const std::vector<int> dims = dims_by_name().at(detail.substr(0, detail.find('.')));
  if (kind == "sum") return [=](const Tensors& in) { return sum(in[0], dims, keep); };
  return [=](const Tensors& in) { return mean(in[0], dims, keep); };
}

TEST(Reduce, AgreesWithPyTorchInValuesAndGradients) {
  const test::Reference reference("reduce");
  int cases = 0;
  for (const auto& [key, stored] : reference.all()) {
    if (!key.ends_with(".out")) continue;
    const std::string name = key.substr(0, key.size() - 4);
    const bool low = stored.dtype() == bf16;
    test::expect_parity(reference, name, operation_of(name), low ? 8e-3 : 2e-6, low ? 1e-3 : 1e-6);
    ++cases;
  }
  EXPECT_GT(cases, 30);
}

TEST(Reduce, GradientsMatchCentralDifferences) {
  const Tensor x = values({3, 4, 5});
  for (const auto& [name, dims] : dims_by_name()) {
    gradcheck([&](const Tensors& in) { return Tensors{sum(in[0], dims)}; }, {x});
    gradcheck([&](const Tensors& in) { return Tensors{mean(in[0], dims, true)}; }, {x});
  }
  gradcheck([](const Tensors& in) { return Tensors{max(in[0], 1), max(in[0], -1, true)}; }, {x});
  gradcheck([](const Tensors& in) { return Tensors{max(in[0])}; }, {x});
  gradcheck([](const Tensors& in) { return Tensors{sum_to(in[0], {4, 1})}; }, {x});
  gradcheck([](const Tensors& in) { return Tensors{sum_to(in[0], {3, 1, 5})}; }, {x});
}

// Every set of dimensions of a shape whose sizes cross the kernels' block sizes.
TEST(Reduce, SumsEverySetOfDimensionsAccurately) {
  const Shape shape = {3, 70, 2, 300};
  const Tensor x = values(shape, f32);
  const std::vector<double> flat = x.to_vector<double>();
  for (unsigned mask = 1; mask < 16; ++mask) {
    std::vector<int> dims;
    Shape kept = shape;
    for (int i = 0; i < 4; ++i) {
      if ((mask >> i & 1) == 0) continue;
      dims.push_back(i);
      kept[i] = 1;
    }
    std::vector<double> want(static_cast<std::size_t>(kept.product()));
    const Dims strides = contiguous_strides(kept);
    for (std::int64_t at = 0; at < x.numel(); ++at) {
      std::int64_t rest = at;
      std::int64_t to = 0;
      for (int i = 3; i >= 0; --i) {
        if (kept[i] != 1) to += rest % shape[i] * strides[i];
        rest /= shape[i];
      }
      want[static_cast<std::size_t>(to)] += flat[static_cast<std::size_t>(at)];
    }
    const std::vector<double> got = sum(x, dims).to_vector<double>();
    ASSERT_EQ(got.size(), want.size());
    // Pairwise sums of n numbers below 1 err by less than log2(n) / 2 units of the largest partial
    // sum, which stays below sqrt(n) or so.
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], want[i], 2e-4) << mask;
  }
}

TEST(Reduce, OrderDependsOnTheShapeAndNotOnStrides) {
  const Tensor x = values({40, 33, 50}, f32);
  const Tensor swapped = x.as_strided({50, 33, 40}, {1, 50, 33 * 50}, 0);
  const Tensor packed = Tensor::empty(swapped.shape()).copy_(swapped);
  for (const auto& dims : std::vector<std::vector<int>>{{}, {0}, {1}, {2}, {0, 2}, {1, 2}}) {
    EXPECT_TRUE(test::same_bits(sum(swapped, dims), sum(packed, dims)));
  }
}

// A column's sum does not change with the columns beside it (a single column is a run), nor a
// row's with the rows.
TEST(Reduce, ResultsDoNotDependOnTheirNeighbours) {
  const Tensor x = values({130, 300}, f32);
  const std::vector<float> columns = sum(x, {0}).to_vector<float>();
  const std::vector<float> rows = sum(x, {1}).to_vector<float>();
  for (const std::int64_t first : {0, 1, 7, 250}) {
    for (const std::int64_t count : {2, 3, 17, 50}) {
      const Tensor part = x.detach().as_strided({130, count}, {300, 1}, first);
      const auto got = sum(part, {0}).to_vector<float>();
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(got[i], columns[i + static_cast<std::size_t>(first)]);
      }
    }
    const std::int64_t row = std::min<std::int64_t>(first, 129);
    EXPECT_EQ(sum(x.as_strided({1, 300}, {300, 1}, row * 300), {1}).item<float>(),
              rows[static_cast<std::size_t>(row)]);
  }
}

TEST(Reduce, LongSumsStayAccurate) {
  // One by one in f32 this would come to 2^24.
  const Tensor ones = Tensor::full({1 << 25}, 1);
  EXPECT_EQ(sum(ones).item<float>(), 33554432.f);
  const Tensor column = Tensor::full({1 << 17, 3}, 0.1);
  for (const float total : sum(column, {0}).to_vector<float>()) {
    EXPECT_NEAR(total, 13107.2, 0.01);
  }
}

TEST(Reduce, SumsOfNothingAreZeroAndMeansAreNan) {
  const Tensor empty = Tensor::zeros({0, 3});
  EXPECT_EQ(sum(empty).item(), 0);
  EXPECT_EQ(sum(empty, {0}).to_vector<float>(), std::vector<float>(3, 0.f));
  EXPECT_EQ(sum(empty, {1}).shape(), Shape({0}));
  EXPECT_TRUE(std::isnan(mean(empty).item()));
  EXPECT_EQ(sum(Tensor::scalar(3.f)).item(), 3);
}

TEST(Reduce, IntegersAreSummedInI64) {
  const Tensor x = Tensor::full({1000}, 2147483647, {.dtype = i32});
  EXPECT_EQ(sum(x).dtype(), i64);
  EXPECT_EQ(sum(x).item<std::int64_t>(), 2147483647000);
  EXPECT_EQ(mean(Tensor::from<std::int64_t>({1, 2}, {2})).item(), 1.5);
}

TEST(Reduce, FirstOfEqualElementsWinsAndNanBeatsAll) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor x = Tensor::from<float>({1, 5, 5, 2, nan, 9, nan, 0}, {2, 4});
  EXPECT_EQ(argmax(x, 1).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 0}));
  EXPECT_EQ(argmax(x, 0).to_vector<std::int64_t>(), (std::vector<std::int64_t>{1, 1, 1, 0}));
  EXPECT_EQ(max(x, 1).to_vector<float>()[0], 5);
  EXPECT_TRUE(std::isnan(max(x).item()));
  Tensor tie = Tensor::from<float>({3, 3}, {2}).set_requires_grad(true);
  max(tie).backward();
  EXPECT_EQ(tie.grad().to_vector<float>(), (std::vector<float>{1, 0}));
}

TEST(Reduce, NormIsExactInAnyOrder) {
  std::vector<float> numbers(10007);
  Generator generator(3);
  const PhiloxState state = generator.reserve(numbers.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    // Magnitudes from 2^-60 to 2^60.
    numbers[i] = std::ldexp(uniform_from_bits(state.bits(i)) - 0.5f,
                            static_cast<int>(state.bits(i) % 121) - 60);
  }
  const auto size = static_cast<std::int64_t>(numbers.size());
  const Tensor norm = l2_norm(Tensor::from(numbers, {size}));
  long double squares = 0;
  for (const float x : numbers) squares += static_cast<long double>(x) * x;
  EXPECT_FLOAT_EQ(norm.item<float>(), static_cast<float>(std::sqrt(squares)));
  std::sort(numbers.begin(), numbers.end());
  EXPECT_EQ(l2_norm(Tensor::from(numbers, {size})).item<float>(), norm.item<float>());

  // Cut into pieces of all sizes, summed limb by limb: equal limbs, not only an equal root.
  const Tensor sorted = Tensor::from(numbers, {size});
  const Tensor whole = exact_square_sum({sorted});
  Tensor parts = Tensor::zeros({kExactSumSize}, {.dtype = i64});
  for (std::int64_t first = 0, count = 1; first < size; first += count, count = count * 2 + 1) {
    count = std::min(count, size - first);
    add_(parts, exact_square_sum({sorted.as_strided({count}, {1}, first)}));
  }
  EXPECT_EQ(exact_sum_root(parts, f64).item(), exact_sum_root(whole, f64).item());
}

TEST(Reduce, NormHandlesExtremesOfEveryDtype) {
  const auto norm_of = [](double value, DType dtype, std::int64_t count) {
    return l2_norm(Tensor::full({count}, value, {.dtype = dtype})).item();
  };
  EXPECT_EQ(norm_of(0, f32, 5), 0);
  EXPECT_EQ(norm_of(3, f64, 4), 6);
  EXPECT_EQ(norm_of(0x1p-149, f32, 400), 20 * 0x1p-149);  // squares are far below f64's smallest
  EXPECT_EQ(norm_of(0x1p127, f32, 1), 0x1p127);
  EXPECT_EQ(norm_of(0x1p127, f32, 300), HUGE_VAL);
  EXPECT_EQ(norm_of(0x1p-1074, f64, 16), 4 * 0x1p-1074);
  EXPECT_EQ(norm_of(0x1p1022, f64, 4), 0x1p1023);
  EXPECT_EQ(norm_of(-2, bf16, 1024), 64);
  EXPECT_EQ(norm_of(0.5, f16, 4), 1);
  EXPECT_EQ(norm_of(HUGE_VAL, f32, 300), HUGE_VAL);
  EXPECT_TRUE(std::isnan(norm_of(NAN, f32, 300)));
  EXPECT_TRUE(std::isnan(norm_of(NAN, f64, 3)));
  EXPECT_EQ(l2_norm(Tensor::zeros({0})).item(), 0);
}

TEST(Reduce, BiasGradientsAreSummedIntoTheirDestination) {
  const Tensor bias = Tensor::zeros({3, 1, 1}, {.requires_grad = true});
  set_grad_destination(bias, Tensor::empty({3, 1, 1}));
  const Tensor x = values({2, 3, 4, 5}, f32);
  for (int step = 1; step <= 2; ++step) {
    EXPECT_EQ(backward_with_stats({x + bias}, {Tensor::ones(x.shape())}).direct_writes, 1);
    EXPECT_EQ(bias.grad().to_vector<float>(), std::vector<float>(3, 40.f * step));
  }
}

TEST(Reduce, ErrorsNameTheDimension) {
  const Tensor x = Tensor::zeros({2, 0});
  EXPECT_THAT(test::message_of<InvalidArgument>([&] { sum(x, {2}); }),
              testing::HasSubstr("dimension 2"));
  EXPECT_THAT(test::message_of<InvalidArgument>([&] {
                sum(x, {0, -2});
              }),
              testing::HasSubstr("twice"));
  EXPECT_THAT(test::message_of<InvalidArgument>([&] { max(x, 1); }), testing::HasSubstr("empty"));
  EXPECT_THAT(test::message_of<InvalidArgument>([&] { max(x); }), testing::HasSubstr("empty"));
  EXPECT_THAT(test::message_of<ShapeError>([&] { sum_to(x, {3}); }), testing::HasSubstr("[3]"));
  EXPECT_THAT(test::message_of<DTypeError>([&] { l2_norm(Tensor::zeros({2}, {.dtype = i32})); }),
              testing::HasSubstr("i32"));
}

}  // namespace
}  // namespace cohort
