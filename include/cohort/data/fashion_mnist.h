#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "cohort/data/dataset.h"

namespace cohort::data {

struct FashionMnistOptions {
  // Where the four IDX files lie, plain or with ".gz" (Debian: package dataset-fashion-mnist).
  std::string root = "/usr/share/datasets/fashion-mnist";
  bool train = true;     // 60,000 samples; else the test set, 10,000
  bool flatten = false;  // inputs [N, 784] instead of [N, 1, 28, 28]
  // A pixel p in 0..255 becomes (p / 255 - mean) / deviation; the defaults are the training set's.
  double mean = 0.2860406;
  double deviation = 0.3530242;
};

// Fashion-MNIST (Xiao, Rasul, Vollgraf, 2017), or any dataset with its layout, MNIST for one:
// batches of f32 images, normalised when they are read, and i64 labels in [0, 10).
class FashionMnist : public Dataset<Batch> {
 public:
  static constexpr std::int64_t kClasses = 10;
  static constexpr std::int64_t kSide = 28;

  // Loads the files. FileError naming the file for one that is missing or damaged, has images of
  // another size, another number of labels, or (naming the sample) a label out of range.
  explicit FashionMnist(const FashionMnistOptions& options = {});

  std::int64_t size() const override { return labels_.size(0); }
  Batch get(std::span<const std::int64_t> indices) const override;

 private:
  Tensor images_;  // u8 [N, 28, 28]: a quarter of the memory of f32
  Tensor labels_;  // i64 [N]
  bool flatten_;
  std::array<float, 256> normalized_;  // of each pixel value
};

}  // namespace cohort::data
