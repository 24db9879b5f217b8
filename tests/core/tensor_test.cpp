#include "cohort/core/tensor.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cohort/autograd/autograd.h"
#include "cohort/core/context.h"

namespace cohort {
namespace {

TEST(Tensor, HoldsTheValuesItWasMadeFrom) {
  const Tensor tensor = Tensor::from<float>({1, 2, 3, 4, 5, 6}, {2, 3});
  EXPECT_EQ(tensor.to_vector<float>(), (std::vector<float>{1, 2, 3, 4, 5, 6}));
  EXPECT_EQ(tensor.size(-1), 3);
  EXPECT_THROW(Tensor::from<float>({1, 2}, {3}), ShapeError);
}

TEST(Tensor, AViewSharesItsStorage) {
  const Tensor tensor = Tensor::zeros({4, 4});
  Tensor column = tensor.as_strided({4}, {4}, 1);
  column.fill_(7);
  EXPECT_EQ(tensor.to_vector<float>()[5], 7);
  EXPECT_EQ(tensor.to_vector<float>()[4], 0);
  EXPECT_FALSE(column.is_contiguous());
}

TEST(Tensor, AViewOutsideTheStorageIsAnError) {
  const Tensor tensor = Tensor::zeros({4});
  EXPECT_THROW(tensor.as_strided({5}, {1}, 0), InvalidArgument);
  EXPECT_THROW(tensor.as_strided({2}, {1}, 3), InvalidArgument);
  EXPECT_THROW(tensor.as_strided({1}, {1}, -1), InvalidArgument);
}

TEST(Tensor, CopyBroadcastsAndConverts) {
  Tensor tensor = Tensor::zeros({2, 3}, {.dtype = i32});
  tensor.copy_(Tensor::from<float>({1.9f, -1.9f, 3}, {3}));
  EXPECT_EQ(tensor.to_vector<std::int32_t>(), (std::vector<std::int32_t>{1, -1, 3, 1, -1, 3}));
  EXPECT_THROW(tensor.copy_(Tensor::zeros({4})), ShapeError);
}

TEST(Tensor, WritesInPlaceCountVersions) {
  Tensor tensor = Tensor::empty({2});
  const auto before = tensor.storage().version();
  tensor.zero_();
  EXPECT_EQ(tensor.storage().version(), before + 1);
}

TEST(Tensor, ReadingWithAnotherTypeIsAnError) {
  const Tensor tensor = Tensor::zeros({2});
  EXPECT_THROW(tensor.data<double>(), DTypeError);
  EXPECT_THROW(tensor.item(), ShapeError);
}

TEST(Tensor, AbsurdShapesAreErrors) {
  EXPECT_THROW(Tensor::empty({-1}), ShapeError);
  EXPECT_THROW(Tensor::empty({std::int64_t{1} << 40, std::int64_t{1} << 40}), ShapeError);
}

TEST(Tensor, InPlaceWritesToAParameterNeedNoGrad) {
  Tensor parameter = Tensor::ones({2}, {.requires_grad = true});
  EXPECT_THROW(parameter.fill_(2), AutogradError);
  const NoGrad no_grad;
  parameter.fill_(2);
  EXPECT_EQ(parameter.to_vector<float>(), (std::vector<float>{2, 2}));
}

TEST(Tensor, PrintsValuesShapeAndDevice) {
  std::ostringstream out;
  out << Tensor::from<float>({1, 2.5f}, {2}) << Tensor::empty({2, 2}, {.device = Device::meta()})
      << Tensor();
  EXPECT_EQ(out.str(), "Tensor([1, 2.5], f32[2] on cpu)Tensor(f32[2, 2] on meta)Tensor(undefined)");
}

TEST(Tensor, WaitsForAQueuedComputeStreamBeforeItShowsValues) {
  for (std::uint64_t seed = 1; seed < 20; ++seed) {
    Context context(Runtime::make({.schedule_seed = seed}));
    const ContextScope scope(context);
    Tensor tensor = Tensor::zeros({3});
    tensor.fill_(1);
    Tensor copy = Tensor::empty({3});
    copy.copy_(tensor);
    tensor.fill_(2);
    EXPECT_EQ(copy.to_vector<float>(), (std::vector<float>{1, 1, 1}));
    EXPECT_EQ(tensor.to_vector<float>(), (std::vector<float>{2, 2, 2}));
  }
}

TEST(Context, ADefaultOneExistsInEveryThread) {
  EXPECT_TRUE(Context::current().grad_enabled);
  EXPECT_EQ(Context::current().runtime()->rank(), 0);
}

TEST(Context, NumbersForInitialisationAgreeAndOthersDifferByRank) {
  Context zero(Runtime::make({.rank = 0}));
  Context one(Runtime::make({.rank = 1}));
  const auto draw = [](Context& context) {
    const ContextScope scope(context);
    manual_seed(11);
    return std::pair(context.init_generator.reserve(1).bits(0),
                     context.generator.reserve(1).bits(0));
  };
  EXPECT_EQ(draw(zero).first, draw(one).first);
  EXPECT_NE(draw(zero).second, draw(one).second);
}

TEST(Philox, MatchesThePublishedVectors) {
  EXPECT_EQ(Philox::generate(0, {0, 0, 0, 0}),
            (Philox::Counter{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(Philox::generate(0x299f31d0a4093822, {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}),
            (Philox::Counter{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

}  // namespace
}  // namespace cohort
