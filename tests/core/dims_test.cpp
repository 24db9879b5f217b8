#include "cohort/core/dims.h"

#include <gtest/gtest.h>

#include <sstream>

#include "cohort/core/dtype.h"

namespace cohort {
namespace {

TEST(Dims, BroadcastStretchesOnesFromTheRight) {
  EXPECT_EQ(broadcast_shapes({2, 1, 3}, {4, 1}), (Shape{2, 4, 3}));
  EXPECT_EQ(broadcast_shapes({}, {5}), (Shape{5}));
  EXPECT_EQ(broadcast_shapes({0, 1}, {1, 3}), (Shape{0, 3}));
}

TEST(Dims, BroadcastOfUnequalSizesIsAnErrorThatNamesBothShapes) {
  try {
    broadcast_shapes({2, 3}, {2, 4});
    FAIL() << "no error";
  } catch (const ShapeError& error) {
    EXPECT_NE(std::string(error.what()).find("[2, 3] and [2, 4]"), std::string::npos);
  }
}

TEST(Dims, ContiguousStridesCountFromTheLastDimension) {
  EXPECT_EQ(contiguous_strides({2, 3, 4}), (Dims{12, 4, 1}));
  EXPECT_EQ(contiguous_strides({}), Dims{});
  EXPECT_EQ(contiguous_strides({2, 0, 4}), (Dims{4, 4, 1}));
}

TEST(Dims, ANinthDimensionIsAnError) {
  EXPECT_EQ((Dims{1, 2, 3, 4, 5, 6, 7, 8}.size()), 8);
  EXPECT_THROW((Dims{1, 2, 3, 4, 5, 6, 7, 8, 9}), ShapeError);
}

TEST(Dims, InsertAndEraseShiftTheRest) {
  Dims dims{1, 2, 3};
  dims.insert(1, 9);
  EXPECT_EQ(dims, (Dims{1, 9, 2, 3}));
  dims.erase(0);
  EXPECT_EQ(dims, (Dims{9, 2, 3}));
}

TEST(Dims, NegativeDimensionNumbersCountFromTheEnd) {
  EXPECT_EQ(normalize_dim(-1, 3), 2);
  EXPECT_THROW(normalize_dim(3, 3), InvalidArgument);
  EXPECT_THROW(normalize_dim(-4, 3), InvalidArgument);
  EXPECT_THROW(normalize_dim(0, 0), InvalidArgument);
}

TEST(DType, PromotionPrefersFloatingThenWider) {
  EXPECT_EQ(promote(i64, f16), f16);
  EXPECT_EQ(promote(f16, bf16), f32);
  EXPECT_EQ(promote(f32, f64), f64);
  EXPECT_EQ(promote(u8, i32), i32);
  EXPECT_EQ(promote(boolean, u8), u8);
  for (int a = 0; a < kDTypeCount; ++a) {
    for (int b = 0; b < kDTypeCount; ++b) {
      EXPECT_EQ(promote(static_cast<DType>(a), static_cast<DType>(b)),
                promote(static_cast<DType>(b), static_cast<DType>(a)));
    }
  }
}

}  // namespace
}  // namespace cohort
