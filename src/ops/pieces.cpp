// The part of ops/shape.h that cuts tensors into pieces and joins them.

#include <algorithm>

#include "cohort/autograd/node.h"
#include "cohort/ops/cast.h"
#include "cohort/ops/shape.h"

namespace cohort {
namespace {

// The window [start, start + length) along `dim`, without a graph.
Tensor window(const Tensor& a, int dim, std::int64_t start, std::int64_t length) {
  Shape shape = a.shape();
  shape[dim] = length;
  // An empty window at the end would begin outside the storage.
  const std::int64_t skipped = length == 0 ? 0 : start * a.strides()[dim];
  return a.as_strided(shape, a.strides(), a.storage_offset() + skipped);
}

// Pieces of one tensor along a dimension, one after the other from `start`; what no piece covers
// has gradient zero. Their gradients are copied into one tensor, each element written once.
class SplitBackward final : public Node {
 public:
  SplitBackward(const Tensor& a, int dim, std::int64_t start, std::vector<std::int64_t> lengths)
      : shape_(a.shape()),
        options_(a.options()),
        dim_(dim),
        start_(start),
        lengths_(std::move(lengths)) {}
  std::string_view name() const override { return "SplitBackward"; }
  void backward(GradFrame& frame) override {
    Tensor grad = Tensor::empty(shape_, options_);
    std::int64_t position = 0;
    const auto advance = [&](std::int64_t length, const Tensor& piece) {
      if (length > 0) {
        Tensor place = window(grad, dim_, position, length);
        if (piece.defined()) {
          place.copy_(piece);
        } else {
          place.zero_();
        }
      }
      position += length;
    };
    advance(start_, {});
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      advance(lengths_[i], frame.grad(static_cast<int>(i)));
    }
    advance(shape_[dim_] - position, {});
    frame.set(0, std::move(grad));
  }
  void release() override {}

 private:
  Shape shape_;
  TensorOptions options_;
  int dim_;
  std::int64_t start_;
  std::vector<std::int64_t> lengths_;
};

// Each input's gradient is a window of the incoming one: nothing is copied.
class CatBackward final : public Node {
 public:
  CatBackward(int dim, std::vector<std::int64_t> lengths)
      : dim_(dim), lengths_(std::move(lengths)) {}
  std::string_view name() const override { return "CatBackward"; }
  void backward(GradFrame& frame) override {
    std::int64_t start = 0;
    for (std::size_t i = 0; i < lengths_.size(); ++i) {
      const int input = static_cast<int>(i);
      if (frame.needs(input)) frame.set(input, window(frame.grad(0), dim_, start, lengths_[i]));
      start += lengths_[i];
    }
  }
  void release() override {}

 private:
  int dim_;
  std::vector<std::int64_t> lengths_;
};

// The shape of all `tensors` joined along `dim`.
Shape joined_shape(const std::vector<Tensor>& tensors, int dim) {
  const Tensor& first = tensors.front();
  Shape joined = first.shape();
  joined[dim] = 0;
  for (const Tensor& tensor : tensors) {
    check<ShapeError>(tensor.rank() == first.rank(), "[cat] shapes ", first.shape(), " and ",
                      tensor.shape(), " differ in number of dimensions");
    check(tensor.device() == first.device(), "[cat] tensors on ", first.device(), " and ",
          tensor.device());
    Shape others = tensor.shape();
    others[dim] = first.shape()[dim];
    check<ShapeError>(others == first.shape(), "[cat] shapes ", first.shape(), " and ",
                      tensor.shape(), " differ outside dimension ", dim);
    joined[dim] += tensor.shape()[dim];
  }
  return joined;
}

}  // namespace

Tensor narrow(const Tensor& a, int dim, std::int64_t start, std::int64_t length) {
  dim = normalize_dim(dim, a.rank());
  const std::int64_t size = a.shape()[dim];
  check(start >= 0 && length >= 0 && start <= size && length <= size - start,
        "[narrow] elements from ", start, ", ", length, " of them, do not lie in dimension ", dim,
        " of shape ", a.shape());
  if (length == size) return a;
  Tensor out = window(a, dim, start, length);
  if (recording(a)) {
    connect(out, make_intrusive<SplitBackward>(a, dim, start, std::vector<std::int64_t>{length}),
            a);
  }
  return out;
}

Tensor select(const Tensor& a, int dim, std::int64_t index) {
  dim = normalize_dim(dim, a.rank());
  const std::int64_t size = a.shape()[dim];
  check(index >= -size && index < size, "[select] index ", index, " is out of range for dimension ",
        dim, " of shape ", a.shape());
  return squeeze(narrow(a, dim, index < 0 ? index + size : index, 1), dim);
}

std::vector<Tensor> split(const Tensor& a, std::int64_t size, int dim) {
  check(size > 0, "[split] size ", size, " is not positive");
  const std::int64_t total = a.size(dim);
  std::vector<std::int64_t> sizes;
  for (std::int64_t start = 0; start < total; start += size) {
    sizes.push_back(std::min(size, total - start));
  }
  if (sizes.empty()) sizes.push_back(0);
  return split(a, sizes, dim);
}

std::vector<Tensor> split(const Tensor& a, const std::vector<std::int64_t>& sizes, int dim) {
  dim = normalize_dim(dim, a.rank());
  std::int64_t total = 0;
  for (const std::int64_t size : sizes) {
    check(size >= 0, "[split] negative size ", size);
    total += size;
  }
  check<ShapeError>(total == a.shape()[dim], "[split] the sizes add up to ", total, ", dimension ",
                    dim, " of shape ", a.shape(), " does not");
  std::vector<Tensor> pieces;
  std::int64_t start = 0;
  for (const std::int64_t size : sizes) {
    pieces.push_back(window(a, dim, start, size));
    start += size;
  }
  if (recording(a) && !pieces.empty()) {
    const Tensor* const input = &a;
    connect(pieces, make_intrusive<SplitBackward>(a, dim, 0, sizes), {&input, 1});
  }
  return pieces;
}

Tensor cat(const std::vector<Tensor>& tensors, int dim) {
  check(!tensors.empty(), "[cat] there is nothing to join");
  dim = normalize_dim(dim, tensors.front().rank());
  const Shape shape = joined_shape(tensors, dim);
  DType dtype = tensors.front().dtype();
  for (const Tensor& tensor : tensors) dtype = promote(dtype, tensor.dtype());
  Tensor out = Tensor::empty(shape, {dtype, tensors.front().device()});
  std::vector<Tensor> inputs;
  std::vector<std::int64_t> lengths;
  std::int64_t start = 0;
  for (const Tensor& tensor : tensors) {
    // Only where a graph is recorded does a cast need a node; else the copy converts.
    inputs.push_back(recording(tensor) ? to(tensor, dtype) : tensor);
    lengths.push_back(tensor.shape()[dim]);
    window(out, dim, start, lengths.back()).copy_(inputs.back().detach());
    start += lengths.back();
  }
  std::vector<const Tensor*> pointers;
  bool wanted = false;
  for (const Tensor& input : inputs) {
    pointers.push_back(&input);
    wanted = wanted || recording(input);
  }
  if (wanted) {
    connect({&out, 1}, make_intrusive<CatBackward>(dim, std::move(lengths)), pointers);
  }
  return out;
}

Tensor stack(const std::vector<Tensor>& tensors, int dim) {
  check(!tensors.empty(), "[stack] there is nothing to join");
  dim = normalize_dim(dim, tensors.front().rank() + 1);
  std::vector<Tensor> raised;
  for (const Tensor& tensor : tensors) {
    check<ShapeError>(tensor.shape() == tensors.front().shape(), "[stack] shapes ",
                      tensors.front().shape(), " and ", tensor.shape(), " differ");
    raised.push_back(unsqueeze(tensor, dim));
  }
  return cat(raised, dim);
}

}  // namespace cohort
