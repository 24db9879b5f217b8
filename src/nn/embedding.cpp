#include "cohort/nn/embedding.h"

#include "cohort/ops/embedding.h"
#include "nn/parameters.h"

namespace cohort::nn {

Embedding::Embedding(std::int64_t num_embeddings, std::int64_t embedding_dim,
                     const EmbeddingOptions& options) {
  check(num_embeddings > 0 && embedding_dim > 0, "[Embedding] ", num_embeddings, " rows of ",
        embedding_dim, ": both must be positive");
  weight = register_parameter(
      "weight", empty_parameter({num_embeddings, embedding_dim}, options.dtype, options.device));
  Embedding::reset_parameters();
}

void Embedding::reset_parameters() {
  init::normal_(weight);
}

Tensor Embedding::forward(const Tensor& indices) {
  check<DTypeError>(indices.dtype() == i64 || indices.dtype() == i32,
                    "[Embedding] indices must be i64 or i32, got ", indices.dtype());
  return embedding(indices, weight);
}

}  // namespace cohort::nn
