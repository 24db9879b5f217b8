#include "cohort/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/data/fashion_mnist.h"
#include "data/data_files.h"

namespace cohort::data {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string error_text(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(GatherRows, PicksRowsInOrderAndMayRepeatThem) {
  const Tensor source = Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {3, 2});
  const Tensor rows = gather_rows(source, std::vector<std::int64_t>{2, 0, 2});
  EXPECT_EQ(rows.shape(), (Shape{3, 2}));
  EXPECT_THAT(rows.to_vector<float>(), ElementsAre(5, 6, 1, 2, 5, 6));
}

TEST(GatherRows, WorksForEveryDtype) {
  for (const DType dtype : {f32, f64, bf16, f16, i32, i64, u8, boolean}) {
    Tensor source = Tensor::zeros({3}, {.dtype = dtype});
    dispatch(dtype, [&](auto zero) {
      using T = decltype(zero);
      source.data<T>()[1] = static_cast<T>(1.f);
    });
    const Tensor rows = gather_rows(source, std::vector<std::int64_t>{1, 0});
    EXPECT_EQ(rows.dtype(), dtype);
    EXPECT_THAT(rows.to_vector<float>(), ElementsAre(1, 0)) << dtype;
  }
}

TEST(GatherRows, ReadsTransposedTensors) {
  const Tensor source =
      Tensor::from({1.f, 2.f, 3.f, 4.f, 5.f, 6.f}, {2, 3}).as_strided({3, 2}, {1, 3}, 0);
  EXPECT_THAT(gather_rows(source, std::vector<std::int64_t>{1}).to_vector<float>(),
              ElementsAre(2, 5));
}

TEST(GatherRows, NamesPositionAndValueOfAnIndexThatIsOutOfRange) {
  const Tensor source = Tensor::zeros({3, 2});
  for (const std::int64_t bad : {std::int64_t{3}, std::int64_t{-1}}) {
    const std::string text = error_text([&] {
      gather_rows(source, std::vector<std::int64_t>{0, bad});
    });
    EXPECT_THAT(text, HasSubstr(str("index ", bad, " at position 1 is outside [0, 3)")));
  }
}

TEST(GatherRows, TakesNoRowsAndEmptyRows) {
  EXPECT_EQ(gather_rows(Tensor::zeros({3, 2}), {}).shape(), (Shape{0, 2}));
  EXPECT_EQ(gather_rows(Tensor::zeros({3, 0}), std::vector<std::int64_t>{1, 1}).shape(),
            (Shape{2, 0}));
}

TEST(TensorDataset, GathersTheSameRowsOfEveryTensor) {
  const TensorDataset dataset(
      {Tensor::from({1.f, 2.f, 3.f}, {3}), Tensor::from({10, 20, 30}, {3, 1})});
  EXPECT_EQ(dataset.size(), 3);
  const std::vector<Tensor> batch = dataset.get(std::vector<std::int64_t>{1, 2});
  EXPECT_THAT(batch[0].to_vector<float>(), ElementsAre(2, 3));
  EXPECT_THAT(batch[1].to_vector<std::int32_t>(), ElementsAre(20, 30));
  EXPECT_EQ(batch[1].shape(), (Shape{2, 1}));
}

TEST(TensorDataset, RefusesTensorsThatDoNotFitTogether) {
  EXPECT_THROW(TensorDataset({}), InvalidArgument);
  EXPECT_THROW(TensorDataset({Tensor::zeros({})}), InvalidArgument);
  EXPECT_THROW(TensorDataset({Tensor()}), InvalidArgument);
  EXPECT_THROW(TensorDataset({Tensor::zeros({3}), Tensor::zeros({4})}), ShapeError);
}

class FashionMnistFiles : public testing::Test {
 protected:
  // Two images, the first all zero but a last pixel of 255, the second all 51.
  void SetUp() override {
    images_ = std::string(783, '\0') + '\xff' + std::string(784, '\x33');
    write(idx_header(0x08, {2, 28, 28}) + images_, idx_header(0x08, {2}) + "\x09\x02");
  }
  void write(const std::string& images, const std::string& labels) {
    directory_.write("train-images-idx3-ubyte", images);
    directory_.write("train-labels-idx1-ubyte", labels);
  }
  std::string load_error() {
    return error_text([&] { FashionMnist({.root = directory_.path()}); });
  }

  TemporaryDirectory directory_;
  std::string images_;
};

TEST_F(FashionMnistFiles, NormalisesPixelsAndWidensLabels) {
  const FashionMnist set({.root = directory_.path(), .mean = 0.5, .deviation = 0.25});
  EXPECT_EQ(set.size(), 2);
  const Batch batch = set.get(std::vector<std::int64_t>{1, 0});
  EXPECT_EQ(batch.inputs.shape(), (Shape{2, 1, 28, 28}));
  EXPECT_THAT(batch.targets.to_vector<std::int64_t>(), ElementsAre(2, 9));
  EXPECT_EQ(batch.targets.dtype(), i64);
  const std::vector<float> pixels = batch.inputs.to_vector<float>();
  EXPECT_FLOAT_EQ(pixels[0], (0.2f - 0.5f) / 0.25f);
  EXPECT_FLOAT_EQ(pixels[784], -2);
  EXPECT_FLOAT_EQ(pixels[2 * 784 - 1], 2);
}

TEST_F(FashionMnistFiles, FlattensOnRequest) {
  const FashionMnist set({.root = directory_.path(), .flatten = true});
  EXPECT_EQ(set.get(std::vector<std::int64_t>{0}).inputs.shape(), (Shape{1, 784}));
}

TEST_F(FashionMnistFiles, NamesAnIndexThatIsOutOfRange) {
  const FashionMnist set({.root = directory_.path()});
  EXPECT_THAT(error_text([&] { set.get(std::vector<std::int64_t>{2}); }),
              HasSubstr("index 2 at position 0 is outside [0, 2)"));
}

TEST_F(FashionMnistFiles, NamesTheSampleWhoseLabelIsOutOfRange) {
  write(idx_header(0x08, {2, 28, 28}) + images_, idx_header(0x08, {2}) + "\x01\x0a");
  EXPECT_THAT(load_error(), testing::AllOf(HasSubstr("label 10 of sample 1 is outside [0, 10)"),
                                           HasSubstr("train-labels-idx1-ubyte")));
}

TEST_F(FashionMnistFiles, RefusesFilesThatAreNotItsOwn) {
  write(idx_header(0x08, {2, 28, 28}) + images_, idx_header(0x08, {1}) + "\x01");
  EXPECT_THAT(load_error(), HasSubstr("1 labels for 2 images"));
  write(idx_header(0x08, {2, 28, 28}) + images_, idx_header(0x08, {2, 28, 28}) + images_);
  EXPECT_THAT(load_error(), HasSubstr("not u8 [N]"));
  write(idx_header(0x08, {1, 2, 2}) + "abcd", idx_header(0x08, {1}) + "\x01");
  EXPECT_THAT(load_error(), HasSubstr("not u8 [N, 28, 28]"));
}

TEST_F(FashionMnistFiles, SaysWhereItLookedForAMissingFile) {
  const std::string text =
      error_text([&] { FashionMnist({.root = directory_.path(), .train = false}); });
  EXPECT_THAT(text,
              testing::AllOf(HasSubstr("t10k-images-idx3-ubyte"), HasSubstr(directory_.path())));
}

TEST(FashionMnist, LoadsTheRealTestSetWhereItIsInstalled) {
  const FashionMnistOptions options{.train = false};
  if (!std::filesystem::exists(options.root)) GTEST_SKIP() << "no dataset in " << options.root;
  const FashionMnist set(options);
  ASSERT_EQ(set.size(), 10000);
  std::vector<std::int64_t> all(10000);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::int64_t>(i);
  const Batch batch = set.get(all);
  // Ten classes of 1000 each; the mean is near the training set's.
  std::vector<int> counts(10);
  for (const std::int64_t label : batch.targets.to_vector<std::int64_t>()) {
    ++counts[static_cast<std::size_t>(label)];
  }
  EXPECT_THAT(counts, testing::Each(1000));
  double sum = 0;
  for (const float value : batch.inputs.to_vector<float>()) sum += value;
  EXPECT_NEAR(sum / static_cast<double>(batch.inputs.numel()), 0, 0.01);
}

}  // namespace
}  // namespace cohort::data
