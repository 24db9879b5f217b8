#include "cohort/data/fashion_mnist.h"

#include <cstdint>
#include <filesystem>

#include "cohort/core/error.h"
#include "cohort/data/idx.h"
#include "data/check_indices.h"

namespace cohort::data {
namespace {

std::string find_file(const std::string& root, const std::string& name) {
  for (const std::string& candidate : {str(root, "/", name), str(root, "/", name, ".gz")}) {
    if (std::filesystem::exists(candidate)) return candidate;
  }
  throw FileError(str("[FashionMnist] there is no ", name, " or ", name, ".gz (directory ", root,
                      "); Debian's package dataset-fashion-mnist has them, or set another root"));
}

Tensor read_images(const std::string& path) {
  Tensor images = read_idx(path);
  check<FileError>(images.dtype() == u8 && images.rank() == 3 &&
                       images.size(1) == FashionMnist::kSide &&
                       images.size(2) == FashionMnist::kSide,
                   "[FashionMnist] the images are ", images.dtype(), " ", images.shape(),
                   ", not u8 [N, 28, 28] (file ", path, ")");
  return images;
}

// The labels as i64, all in range.
Tensor read_labels(const std::string& path, std::int64_t count) {
  const Tensor raw = read_idx(path);
  check<FileError>(raw.dtype() == u8 && raw.rank() == 1, "[FashionMnist] the labels are ",
                   raw.dtype(), " ", raw.shape(), ", not u8 [N] (file ", path, ")");
  check<FileError>(raw.size(0) == count, "[FashionMnist] ", raw.size(0), " labels for ", count,
                   " images (file ", path, ")");
  Tensor labels = Tensor::empty({count}, {.dtype = i64});
  const auto* from = raw.data<std::uint8_t>();
  auto* to = labels.data<std::int64_t>();
  for (std::int64_t i = 0; i < count; ++i) {
    check<FileError>(from[i] < FashionMnist::kClasses, "[FashionMnist] label ",
                     static_cast<int>(from[i]), " of sample ", i, " is outside [0, 10) (file ",
                     path, ")");
    to[i] = from[i];
  }
  return labels;
}

}  // namespace

FashionMnist::FashionMnist(const FashionMnistOptions& options) : flatten_(options.flatten) {
  check(options.deviation > 0, "[FashionMnist] deviation is ", options.deviation,
        "; it must be positive");
  const std::string set = options.train ? "train" : "t10k";
  images_ = read_images(find_file(options.root, set + "-images-idx3-ubyte"));
  labels_ = read_labels(find_file(options.root, set + "-labels-idx1-ubyte"), images_.size(0));
  for (std::size_t pixel = 0; pixel < normalized_.size(); ++pixel) {
    const double value = static_cast<double>(pixel) / 255;
    normalized_[pixel] = static_cast<float>((value - options.mean) / options.deviation);
  }
}

Batch FashionMnist::get(std::span<const std::int64_t> indices) const {
  check_indices("FashionMnist", indices, size());
  const auto count = static_cast<std::int64_t>(indices.size());
  constexpr std::int64_t kPixels = kSide * kSide;
  Batch batch;
  batch.targets = gather_rows(labels_, indices);
  batch.inputs = Tensor::empty(flatten_ ? Shape{count, kPixels} : Shape{count, 1, kSide, kSide});
  const auto* images = images_.data<std::uint8_t>();
  auto* to = batch.inputs.data<float>();
  for (const std::int64_t index : indices) {
    const std::uint8_t* from = images + index * kPixels;
    for (std::int64_t i = 0; i < kPixels; ++i) to[i] = normalized_[from[i]];
    to += kPixels;
  }
  return batch;
}

}  // namespace cohort::data
