#include "cohort/data/dataset.h"

#include <cstring>
#include <utility>

#include "cohort/autograd/autograd.h"
#include "cohort/core/error.h"
#include "data/check_indices.h"

namespace cohort::data {

void check_indices(const char* operation, std::span<const std::int64_t> indices,
                   std::int64_t size) {
  for (std::size_t i = 0; i < indices.size(); ++i) {
    if (indices[i] >= 0 && indices[i] < size) continue;
    throw InvalidArgument(str("[", operation, "] index ", indices[i], " at position ", i,
                              " is outside [0, ", size, ")"));
  }
}

Tensor gather_rows(const Tensor& source, std::span<const std::int64_t> indices) {
  check<ShapeError>(source.rank() >= 1, "[gather_rows] a scalar has no rows");
  check<NotSupported>(source.device().type == DeviceType::cpu, "[gather_rows] the tensor is on ",
                      source.device(), "; datasets live on the CPU");
  check_indices("gather_rows", indices, source.size(0));
  const Tensor rows = source.is_contiguous() ? source.detach() : source.detach().contiguous();
  Shape shape = source.shape();
  shape[0] = static_cast<std::int64_t>(indices.size());
  Tensor result = Tensor::empty(shape, {.dtype = source.dtype()});
  if (result.numel() == 0) return result;

  const std::size_t row_bytes = result.bytes() / indices.size();
  const auto gather = [&](auto zero) {
    using T = decltype(zero);
    // data() waits for whatever still writes the source or reads the result's memory.
    const auto* from = reinterpret_cast<const std::byte*>(rows.data<T>());
    auto* to = reinterpret_cast<std::byte*>(result.data<T>());
    for (const std::int64_t index : indices) {
      std::memcpy(to, from + static_cast<std::size_t>(index) * row_bytes, row_bytes);
      to += row_bytes;
    }
  };
  dispatch(source.dtype(), gather);
  return result;
}

TensorDataset::TensorDataset(std::vector<Tensor> tensors) {
  check(!tensors.empty(), "[TensorDataset] needs at least one tensor");
  for (const Tensor& tensor : tensors) {
    check(tensor.defined() && tensor.rank() >= 1,
          "[TensorDataset] every tensor needs a first dimension, the samples");
    check<ShapeError>(tensor.size(0) == tensors.front().size(0), "[TensorDataset] shape ",
                      tensor.shape(), " has another number of samples than ",
                      tensors.front().shape());
    tensors_.push_back(tensor.detach().contiguous());
  }
}

std::vector<Tensor> TensorDataset::get(std::span<const std::int64_t> indices) const {
  std::vector<Tensor> batch;
  batch.reserve(tensors_.size());
  for (const Tensor& tensor : tensors_) batch.push_back(gather_rows(tensor, indices));
  return batch;
}

}  // namespace cohort::data
