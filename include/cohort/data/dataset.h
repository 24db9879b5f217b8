#pragma once

#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "cohort/core/tensor.h"

namespace cohort::data {

// Samples by number, read in batches. get() is called by one thread at a time, a loader's
// background thread possibly, while other const members may run elsewhere.
template <typename BatchType>
class Dataset {
 public:
  using Batch = BatchType;

  virtual ~Dataset() = default;
  // Number of samples.
  virtual std::int64_t size() const = 0;
  // The samples `indices`, in that order. InvalidArgument for one outside [0, size()).
  virtual Batch get(std::span<const std::int64_t> indices) const = 0;
};

// What a supervised dataset yields: `inputs` and `targets` of equal first size.
struct Batch {
  Tensor inputs;
  Tensor targets;
  // For the modules' visit_tensors (nn/visit_tensors.h).
  static constexpr auto tensor_fields = std::tuple{&Batch::inputs, &Batch::targets};
};

// The rows of a CPU tensor [rows, ..] picked by `indices` -> [indices.size(), ..], a fresh tensor.
// InvalidArgument naming position and index for one outside [0, rows).
Tensor gather_rows(const Tensor& source, std::span<const std::int64_t> indices);

// CPU tensors of equal first size; sample i is row i of each. The tensors are shared, not copied
// (made contiguous if they are not), and must not be written while a loader reads them.
class TensorDataset : public Dataset<std::vector<Tensor>> {
 public:
  // ShapeError when first sizes differ, InvalidArgument without tensors or for a scalar.
  explicit TensorDataset(std::vector<Tensor> tensors);

  std::int64_t size() const override { return tensors_.front().size(0); }
  std::vector<Tensor> get(std::span<const std::int64_t> indices) const override;
  const std::vector<Tensor>& tensors() const { return tensors_; }

 private:
  std::vector<Tensor> tensors_;
};

}  // namespace cohort::data
