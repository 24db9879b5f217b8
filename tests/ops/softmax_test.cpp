#include "cohort/ops/softmax.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "cohort/autograd/gradcheck.h"
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

struct Along {
  const char* name;
  int dim;
};

TEST(Softmax, AgreesWithPyTorch) {
  const test::Reference reference("softmax");
  for (const Along c : {Along{"row", 1}, Along{"long", -1}, Along{"column", 0}, Along{"middle", 1},
                        Along{"single", 1}, Along{"large", 1}}) {
    expect_parity(reference, str("softmax.", c.name),
                  [&](auto& in) { return softmax(in[0], c.dim); });
    expect_parity(reference, str("log_softmax.", c.name),
                  [&](auto& in) { return log_softmax(in[0], c.dim); });
  }
  expect_parity(reference, "softmax.masked", [](auto& in) { return softmax(in[0], 1); });
}

TEST(Softmax, GradientsAreThoseOfCentralDifferences) {
  for (const Shape& shape :
       {Shape{3, 5}, Shape{1, 1}, Shape{2, 37}, Shape{2, 3, 35}, Shape{0, 4}}) {
    for (int dim = 0; dim < shape.size(); ++dim) {
      SCOPED_TRACE(str(shape, " along ", dim));
      EXPECT_NO_THROW(gradcheck([&](const Tensors& in) { return Tensors{softmax(in[0], dim)}; },
                                {values(shape)}));
      EXPECT_NO_THROW(gradcheck([&](const Tensors& in) { return Tensors{log_softmax(in[0], dim)}; },
                                {values(shape)}));
    }
  }
  EXPECT_NO_THROW(
      gradcheck([](const Tensors& in) { return Tensors{softmax(transpose(in[0], 0, 1), 1)}; },
                {values({5, 3})}));
}

TEST(Softmax, HalfPrecisionIsComputedInF32AndRoundedOnce) {
  for (const DType dtype : {bf16, f16}) {
    const Tensor a = values({3, 40}, dtype);
    for (const int dim : {0, 1}) {
      EXPECT_TRUE(same_bits(softmax(a, dim), softmax(a.to(f32), dim).to(dtype))) << dtype;
      EXPECT_TRUE(same_bits(log_softmax(a, dim), log_softmax(a.to(f32), dim).to(dtype))) << dtype;
    }
  }
}

TEST(Softmax, ANumbersBitsDoNotDependOnWhereItsRowLies) {
  const Tensor row = values({1, 61}, f32);
  const Tensor shifted = narrow(cat({values({1, 3}, f32, 2), row}, 1), 1, 3, 61);
  const Tensor stacked = cat({values({2, 61}, f32, 3), row}, 0);
  EXPECT_TRUE(same_bits(softmax(row), softmax(shifted)));
  EXPECT_TRUE(same_bits(softmax(row), narrow(softmax(stacked), 0, 2, 1)));
}

TEST(Softmax, NotANumberStaysInItsRow) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const Tensor out = softmax(Tensor::from<float>({nan, 1, 2, 3}, {2, 2}));
  const auto numbers = out.to_vector<float>();
  EXPECT_TRUE(numbers[0] != numbers[0] && numbers[1] != numbers[1]);
  EXPECT_NEAR(numbers[2] + numbers[3], 1, 1e-6);
}

TEST(Softmax, MisuseSaysWhatIsWrong) {
  EXPECT_THAT(message_of<DTypeError>([] { softmax(Tensor::zeros({2}, {i64})); }),
              HasSubstr("[softmax]"));
  EXPECT_THAT(message_of<InvalidArgument>([] { log_softmax(Tensor::zeros({2}), 1); }),
              HasSubstr("1"));
}

TEST(Softmax, AScalarHasProbabilityOne) {
  EXPECT_EQ(softmax(Tensor::zeros({})).item(), 1);
}

}  // namespace
}  // namespace cohort
