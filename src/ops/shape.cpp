#include "cohort/ops/shape.h"

#include <optional>

#include "cohort/autograd/node.h"
#include "cohort/ops/reduce.h"

namespace cohort {
namespace {

// A gradient that is the incoming one in another shape.
class ReshapeBackward final : public Node {
 public:
  explicit ReshapeBackward(const Shape& shape) : shape_(shape) {}
  std::string_view name() const override { return "ReshapeBackward"; }
  void backward(GradFrame& frame) override {
    if (frame.grad(0).defined()) frame.set(0, reshape(frame.grad(0), shape_));
  }
  void release() override {}

 private:
  Shape shape_;
};

class PermuteBackward final : public Node {
 public:
  explicit PermuteBackward(const std::vector<int>& dims) : inverse_(dims.size()) {
    for (std::size_t i = 0; i < dims.size(); ++i) {
      inverse_[static_cast<std::size_t>(dims[i])] = static_cast<int>(i);
    }
  }
  std::string_view name() const override { return "PermuteBackward"; }
  void backward(GradFrame& frame) override {
    if (frame.grad(0).defined()) frame.set(0, permute(frame.grad(0), inverse_));
  }
  void release() override {}

 private:
  std::vector<int> inverse_;
};

class ExpandBackward final : public Node {
 public:
  explicit ExpandBackward(const Shape& shape) : shape_(shape) {}
  std::string_view name() const override { return "ExpandBackward"; }
  void backward(GradFrame& frame) override {
    if (frame.grad(0).defined()) frame.set(0, sum_to(frame.grad(0), shape_));
  }
  void release() override {}

 private:
  Shape shape_;
};

class CloneBackward final : public Node {
 public:
  std::string_view name() const override { return "CloneBackward"; }
  void backward(GradFrame& frame) override { frame.set(0, frame.grad(0)); }
  void release() override {}
};

// A view of `a`; `make_node` makes its origin where a graph is recorded.
template <typename MakeNode>
Tensor make_view(const Tensor& a, const Shape& shape, const Dims& strides, MakeNode&& make_node) {
  Tensor out = a.as_strided(shape, strides, a.storage_offset());
  if (recording(a)) connect(out, make_node(), a);
  return out;
}

Tensor make_reshaped(const Tensor& a, const Shape& shape, const Dims& strides) {
  return make_view(a, shape, strides, [&] { return make_intrusive<ReshapeBackward>(a.shape()); });
}

// `shape` with a -1 replaced by what is left of `a`'s elements.
Shape resolve_shape(const char* operation, const Tensor& a, Shape shape) {
  int unknown = -1;
  std::int64_t known = 1;
  for (int i = 0; i < shape.size(); ++i) {
    if (shape[i] == -1) {
      check<ShapeError>(unknown < 0, "[", operation, "] more than one size of ", shape, " is -1");
      unknown = i;
    } else {
      check<ShapeError>(shape[i] >= 0, "[", operation, "] negative size in ", shape);
      known *= shape[i];
    }
  }
  if (unknown >= 0) {
    check<ShapeError>(known > 0 && a.numel() % known == 0, "[", operation, "] shape ", a.shape(),
                      " does not fill ", shape, "; no size fits in place of -1");
    shape[unknown] = a.numel() / known;
  }
  check<ShapeError>(shape.product() == a.numel(), "[", operation, "] shape ", a.shape(),
                    " has another number of elements than ", shape);
  return shape;
}

// Strides of `shape` over the elements of `a` in row-major order, if there are such: each run of
// dimensions of `a` that lies evenly spaced may be cut anew.
std::optional<Dims> view_strides(const Tensor& a, const Shape& shape) {
  if (a.is_contiguous()) return contiguous_strides(shape);
  Dims result = Dims::filled(shape.size(), 1);
  int to = shape.size() - 1;
  std::int64_t step = a.strides().back();  // of the run's last dimension
  std::int64_t run = 1;                    // elements of a's dimensions in the run
  for (int from = a.rank() - 1; from >= 0; --from) {
    run *= a.shape()[from];
    const bool goes_on =
        from > 0 && (a.shape()[from - 1] == 1 || a.strides()[from - 1] == run * step);
    if (goes_on) continue;
    std::int64_t filled = 1;
    while (to >= 0 && (filled < run || shape[to] == 1)) {
      result[to] = filled * step;
      filled *= shape[to];
      --to;
    }
    if (filled != run) return std::nullopt;
    run = 1;
    if (from > 0) step = a.strides()[from - 1];
  }
  return to < 0 ? std::optional<Dims>(result) : std::nullopt;
}

}  // namespace

Tensor reshape(const Tensor& a, const Shape& requested) {
  const Shape shape = resolve_shape("reshape", a, requested);
  if (shape == a.shape()) return a;
  if (const auto strides = view_strides(a, shape)) return make_reshaped(a, shape, *strides);
  return make_reshaped(clone(a), shape, contiguous_strides(shape));
}

Tensor view(const Tensor& a, const Shape& requested) {
  const Shape shape = resolve_shape("view", a, requested);
  if (shape == a.shape()) return a;
  const auto strides = view_strides(a, shape);
  check<ShapeError>(strides.has_value(), "[view] shape ", a.shape(), " with strides ", a.strides(),
                    " cannot be seen as ", shape, "; use reshape, which copies");
  return make_reshaped(a, shape, *strides);
}

Tensor flatten(const Tensor& a, int first, int last) {
  if (a.rank() == 0) return reshape(a, {1});
  first = normalize_dim(first, a.rank());
  last = normalize_dim(last, a.rank());
  check(first <= last, "[flatten] dimension ", first, " comes after ", last);
  Shape shape;
  for (int i = 0; i < a.rank(); ++i) {
    if (i <= first || i > last) {
      shape.push_back(a.shape()[i]);
    } else {
      shape.back() *= a.shape()[i];
    }
  }
  return reshape(a, shape);
}

Tensor permute(const Tensor& a, const std::vector<int>& dims) {
  check<ShapeError>(static_cast<int>(dims.size()) == a.rank(), "[permute] ", dims.size(),
                    " dimensions given for shape ", a.shape());
  std::vector<int> order;
  Shape shape;
  Dims strides;
  unsigned seen = 0;
  for (const int given : dims) {
    const int dim = normalize_dim(given, a.rank());
    check((seen >> dim & 1u) == 0, "[permute] dimension ", dim, " is named twice");
    seen |= 1u << dim;
    order.push_back(dim);
    shape.push_back(a.shape()[dim]);
    strides.push_back(a.strides()[dim]);
  }
  return make_view(a, shape, strides, [&] { return make_intrusive<PermuteBackward>(order); });
}

Tensor transpose(const Tensor& a, int dim0, int dim1) {
  std::vector<int> order;
  for (int i = 0; i < a.rank(); ++i) order.push_back(i);
  std::swap(order[static_cast<std::size_t>(normalize_dim(dim0, a.rank()))],
            order[static_cast<std::size_t>(normalize_dim(dim1, a.rank()))]);
  return permute(a, order);
}

Tensor expand(const Tensor& a, const Shape& requested) {
  const int shift = requested.size() - a.rank();
  check<ShapeError>(shift >= 0, "[expand] shape ", a.shape(), " has more dimensions than ",
                    requested);
  Shape shape = requested;
  Dims strides = Dims::filled(shape.size(), 0);
  for (int i = 0; i < shape.size(); ++i) {
    const std::int64_t have = i < shift ? 1 : a.shape()[i - shift];
    if (shape[i] == -1 && i >= shift) shape[i] = have;
    check<ShapeError>(shape[i] >= 0 && (shape[i] == have || have == 1), "[expand] shape ",
                      a.shape(), " does not expand to ", requested);
    if (i >= shift && shape[i] == have) strides[i] = a.strides()[i - shift];
  }
  if (shape == a.shape()) return a;
  return make_view(a, shape, strides, [&] { return make_intrusive<ExpandBackward>(a.shape()); });
}

Tensor squeeze(const Tensor& a, int dim) {
  dim = normalize_dim(dim, a.rank());
  if (a.shape()[dim] != 1) return a;
  Shape shape = a.shape();
  Dims strides = a.strides();
  shape.erase(dim);
  strides.erase(dim);
  return make_reshaped(a, shape, strides);
}

Tensor unsqueeze(const Tensor& a, int dim) {
  dim = normalize_dim(dim, a.rank() + 1);
  Shape shape = a.shape();
  Dims strides = a.strides();
  const std::int64_t stride = dim < a.rank() ? a.shape()[dim] * a.strides()[dim] : 1;
  shape.insert(dim, 1);
  strides.insert(dim, stride);
  return make_reshaped(a, shape, strides);
}

Tensor clone(const Tensor& a) {
  Tensor out = Tensor::empty(a.shape(), a.options());
  out.copy_(a);
  if (recording(a)) connect(out, make_intrusive<CloneBackward>(), a);
  return out;
}

Tensor contiguous(const Tensor& a) {
  return a.is_contiguous() ? a : clone(a);
}

Tensor Tensor::reshape(const Shape& shape) const {
  return cohort::reshape(*this, shape);
}

Tensor Tensor::transpose(int dim0, int dim1) const {
  return cohort::transpose(*this, dim0, dim1);
}

Tensor Tensor::contiguous() const {
  return cohort::contiguous(*this);
}

Tensor Tensor::clone() const {
  return cohort::clone(*this);
}

}  // namespace cohort
