#pragma once

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "cohort/core/tensor.h"
#include "cohort/nn/sequential.h"

// Whole models, ready to train; parameters start from the context's init_generator.
namespace cohort::models {

struct ModelOptions {
  DType dtype = f32;
  Device device = Device::cpu();
};

// The layer widths of "784-2048-2048-10": at least two positive integers. InvalidArgument, quoting
// the text, for anything else.
std::vector<std::int64_t> parse_widths(std::string_view spec);

// A multi-layer perceptron of these widths: Flatten, then Linear layers with ReLU between them.
// Inputs [N, ..] with the first width of features each -> logits [N, last width].
std::shared_ptr<nn::Sequential> make_mlp(std::string_view spec, const ModelOptions& options = {});

struct FashionCnnOptions {
  std::int64_t channels = 32;  // of the first convolution; the second has twice as many
  std::int64_t classes = 10;
  bool batch_norm = true;
  DType dtype = f32;
  Device device = Device::cpu();
};

// Two times convolution (3 x 3), batch norm, ReLU and max pooling, then a linear layer:
// [N, 1, 28, 28] -> logits [N, classes].
std::shared_ptr<nn::Sequential> make_fashion_cnn(const FashionCnnOptions& options = {});

}  // namespace cohort::models
