#pragma once

#include <cstdint>

#include "cohort/nn/module.h"

namespace cohort::nn {

struct EmbeddingOptions {
  DType dtype = f32;
  Device device = Device::cpu();
};

// Indices [..] (i64 or i32) -> rows of weight [num_embeddings, embedding_dim], which starts normal
// with mean 0 and deviation 1. InvalidArgument for an index that is out of range.
class Embedding : public Layer {
 public:
  Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim,
            const EmbeddingOptions& options = {});
  Tensor forward(const Tensor& indices) override;
  void reset_parameters() override;

  Tensor weight;
};

}  // namespace cohort::nn
