#include "cohort/ops/cast.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cohort/autograd/autograd.h"
#include "cohort/ops/elementwise.h"
#include "support/parity.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort {
namespace {

using Tensors = std::vector<Tensor>;

TEST(Cast, AgreesWithPyTorchBetweenAllDtypes) {
  const test::Reference reference("cast");
  int cases = 0;
  for (const auto& [key, stored] : reference.all()) {
    if (!key.ends_with(".out")) continue;
    const DType target = stored.dtype();
    test::expect_parity(
        reference, key.substr(0, key.size() - 4),
        [target](const Tensors& in) { return in[0].to(target); }, 0, 0);
    ++cases;
  }
  EXPECT_EQ(cases, kDTypeCount * (kDTypeCount - 1));
}

TEST(Cast, RoundsDoublesOnceToHalfPrecision) {
  // Just above a tie of bf16: by way of f32 the excess would be lost and the tie go to even.
  const double above = 1 + 0x1p-8 + 0x1p-40;
  EXPECT_EQ(Tensor::scalar(above).to(bf16).item(), 1 + 0x1p-7);
  EXPECT_EQ(Tensor::scalar(-above).to(bf16).item(), -(1 + 0x1p-7));
  EXPECT_EQ(Tensor::scalar(1 + 0x1p-8 - 0x1p-40).to(bf16).item(), 1);
  EXPECT_EQ(Tensor::scalar(1 + 0x1p-8).to(bf16).item(), 1);
  EXPECT_EQ(Tensor::scalar(1 + 0x1p-11 + 0x1p-40).to(f16).item(), 1 + 0x1p-10);
  EXPECT_EQ(Tensor::scalar(1e300).to(bf16).item(), HUGE_VAL);
  EXPECT_TRUE(std::isnan(Tensor::scalar(NAN).to(f16).item()));
}

TEST(Cast, EveryHalfSurvivesARoundTrip) {
  for (const DType dtype : {bf16, f16}) {
    const Tensor all = Tensor::empty({65536}, {.dtype = dtype});
    auto* bits = static_cast<std::uint16_t*>(all.raw());
    for (int i = 0; i < 65536; ++i) bits[i] = static_cast<std::uint16_t>(i);
    const auto values = all.to(f32).to_vector<float>();
    const Tensor back = all.to(f32).to(dtype);
    const Tensor back_from_double = all.to(f64).to(dtype);
    const auto* again = static_cast<const std::uint16_t*>(back.raw());
    const auto* again_from_double = static_cast<const std::uint16_t*>(back_from_double.raw());
    for (std::size_t i = 0; i < 65536; ++i) {
      if (std::isnan(values[i])) continue;
      ASSERT_EQ(again[i], i);
      ASSERT_EQ(again_from_double[i], i);
    }
  }
}

TEST(Cast, FloatsOutsideTheRangeOfIntegersSaturate) {
  const Tensor x = Tensor::from<float>({1e30f, -1e30f, NAN, -1.5f, 300}, {5});
  EXPECT_EQ(x.to(i32).to_vector<std::int64_t>(),
            (std::vector<std::int64_t>{2147483647, -2147483648LL, 0, -1, 300}));
  EXPECT_EQ(x.to(i64).to_vector<std::int64_t>()[0], std::numeric_limits<std::int64_t>::max());
  EXPECT_EQ(x.to(i64).to_vector<std::int64_t>()[1], std::numeric_limits<std::int64_t>::min());
  EXPECT_EQ(x.to(u8).to_vector<std::int64_t>(), (std::vector<std::int64_t>{255, 0, 0, 0, 255}));
}

TEST(Cast, GivesTheTensorItselfWhenNothingChanges) {
  const Tensor x = Tensor::ones({2});
  EXPECT_TRUE(x.to(f32).is_same(x));
  EXPECT_TRUE(x.to(Device::cpu()).is_same(x));
}

TEST(Cast, GradientsComeBackInTheInputsDtype) {
  const Tensor x = test::values({3}, f32).set_requires_grad(true);
  (x.to(bf16) * 2).backward(Tensor::ones({3}, {.dtype = bf16}));
  EXPECT_EQ(x.grad().dtype(), f32);
  EXPECT_EQ(x.grad().to_vector<float>(), std::vector<float>(3, 2.f));
}

TEST(Cast, MetaTensorsGoNowhere) {
  const Tensor meta = Tensor::ones({2, 3}).to(Device::meta());
  EXPECT_EQ(meta.shape(), Shape({2, 3}));
  EXPECT_EQ(meta.device(), Device::meta());
  EXPECT_THAT(test::message_of<NotSupported>([&] { meta.to(Device::cpu()); }),
              testing::HasSubstr("no values"));
}

}  // namespace
}  // namespace cohort
