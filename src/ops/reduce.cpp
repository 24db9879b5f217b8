#include "cohort/ops/reduce.h"

#include <optional>
#include <utility>

#include "ops/op.h"

namespace cohort {
namespace {

using backend::View;

const backend::ReduceKernels& kernels(const Tensor& tensor) {
  return op::backend_of(tensor).reduce();
}

// `a` as its kernels want it, without a graph.
Tensor packed(const Tensor& a) {
  if (a.is_contiguous()) return a;
  return Tensor::empty(a.shape(), a.options()).copy_(a.detach());
}

// The shape with size 1 in the reduced dimensions.
Shape kept_shape(const char* operation, const Tensor& a, const std::vector<int>& dims) {
  check(a.defined(), "[", operation, "] the operand is undefined");
  Shape shape = a.shape();
  if (dims.empty()) return Dims::filled(a.rank(), 1);
  std::vector<bool> seen(static_cast<std::size_t>(a.rank()));
  for (const int given : dims) {
    const int dim = normalize_dim(given, a.rank());
    check(!seen[static_cast<std::size_t>(dim)], "[", operation, "] dimension ", given,
          " is listed twice");
    seen[static_cast<std::size_t>(dim)] = true;
    shape[dim] = 1;
  }
  return shape;
}

// The shape without the reduced dimensions.
Shape dropped_shape(const Tensor& a, const std::vector<int>& dims) {
  if (dims.empty()) return {};
  std::vector<bool> drop(static_cast<std::size_t>(a.rank()));
  for (const int dim : dims) drop[static_cast<std::size_t>(normalize_dim(dim, a.rank()))] = true;
  Shape shape;
  for (int i = 0; i < a.rank(); ++i) {
    if (!drop[static_cast<std::size_t>(i)]) shape.push_back(a.shape()[i]);
  }
  return shape;
}

// A window of another shape onto the elements of a contiguous tensor.
Tensor reshaped(const Tensor& a, const Shape& shape) {
  return a.as_strided(shape, contiguous_strides(shape), a.storage_offset());
}

// The gradient repeats along the reduced dimensions, divided where they were averaged. It is a view
// with stride 0 there: no memory, and kernels read it as a constant.
class SumBackward final : public Node {
 public:
  SumBackward(std::string_view name, const Tensor& a, const Shape& kept, double divisor)
      : name_(name), shape_(a.shape()), dtype_(a.dtype()), kept_(kept), divisor_(divisor) {}
  std::string_view name() const override { return name_; }
  void backward(GradFrame& frame) override {
    Tensor grad = frame.grad(0);
    if (divisor_ != 1 || grad.dtype() != dtype_) {
      Tensor scaled = Tensor::empty(grad.shape(), {dtype_, grad.device(), false});
      op::backend_of(grad).elementwise().unary(op::stream_of(grad), backend::UnaryOp::div_scalar,
                                               scaled, grad, {.p = divisor_});
      grad = scaled;
    }
    grad = reshaped(packed(grad), kept_);
    Dims strides = grad.strides();
    for (int i = 0; i < shape_.size(); ++i) {
      if (kept_[i] != shape_[i]) strides[i] = 0;
    }
    frame.set(0, grad.as_strided(shape_, strides, grad.storage_offset()));
  }
  void release() override {}

 private:
  std::string_view name_;
  Shape shape_;
  DType dtype_;
  Shape kept_;
  double divisor_;
};

Tensor reduce(std::string_view node, const Tensor& a, const Shape& kept, const Shape& result,
              DType dtype, double divisor) {
  Tensor out = Tensor::empty(result, {dtype, a.device(), false});
  kernels(a).sum(op::stream_of(a), reshaped(out, kept), packed(a), /*accumulate=*/false, divisor);
  if (recording(a)) connect(out, make_intrusive<SumBackward>(node, a, kept, divisor), a);
  return out;
}

// The gradient goes to the chosen elements along `dim`, or of all elements where there is no `dim`.
class MaxBackward final : public Node {
 public:
  MaxBackward(const Shape& shape, std::optional<int> dim, const Tensor& indices)
      : shape_(shape), dim_(dim), indices_(indices) {}
  std::string_view name() const override { return "MaxBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor grad = packed(frame.grad(0));
    const Tensor& indices = indices_.get(*this);
    op::give_written(
        frame, 0, shape_, grad.dtype(), grad.options(), shape_, [&](const Tensor& out) {
          const View view = dim_ ? View(out) : View(reshaped(out, {out.numel()}));
          kernels(grad).max_grad(op::stream_of(grad), view, grad, indices, dim_.value_or(0));
        });
  }
  void release() override { indices_.reset(); }

 private:
  Shape shape_;
  std::optional<int> dim_;
  SavedTensor indices_;
};

struct Largest {
  Tensor values;  // undefined where not wanted
  Tensor indices;
};

Largest largest(const char* operation, const Tensor& a, int dim, bool keep_dim, bool with_values) {
  check(a.shape()[dim] > 0, "[", operation, "] dimension ", dim, " of shape ", a.shape(),
        " is empty: there is no largest element");
  Shape shape = a.shape();
  if (keep_dim) {
    shape[dim] = 1;
  } else {
    shape.erase(dim);
  }
  Largest result;
  result.indices = Tensor::empty(shape, {DType::i64, a.device(), false});
  View values;
  if (with_values) {
    result.values = Tensor::empty(shape, a.options());
    values = result.values;
  }
  kernels(a).max(op::stream_of(a), values, result.indices, packed(a), dim);
  return result;
}

}  // namespace

Tensor sum(const Tensor& a, const std::vector<int>& dims, bool keep_dim) {
  const Shape kept = kept_shape("sum", a, dims);
  const DType dtype = is_floating(a.dtype()) ? a.dtype() : DType::i64;
  return reduce("SumBackward", a, kept, keep_dim ? kept : dropped_shape(a, dims), dtype, 1);
}

Tensor mean(const Tensor& a, const std::vector<int>& dims, bool keep_dim) {
  const Shape kept = kept_shape("mean", a, dims);
  const DType dtype = is_floating(a.dtype()) ? a.dtype() : DType::f32;
  // Of nothing it is 0 / 0: NaN.
  std::int64_t averaged = 1;
  for (int i = 0; i < a.rank(); ++i) averaged *= kept[i] == 1 ? a.shape()[i] : 1;
  return reduce("MeanBackward", a, kept, keep_dim ? kept : dropped_shape(a, dims), dtype,
                static_cast<double>(averaged));
}

Tensor max(const Tensor& a, int dim, bool keep_dim) {
  check(a.defined(), "[max] the operand is undefined");
  const int at = normalize_dim(dim, a.rank());
  auto [out, indices] = largest("max", a, at, keep_dim, /*with_values=*/true);
  if (recording(a)) connect(out, make_intrusive<MaxBackward>(a.shape(), at, indices), a);
  return out;
}

Tensor max(const Tensor& a) {
  check(a.defined(), "[max] the operand is undefined");
  const Tensor flat = reshaped(packed(a).detach(), {a.numel()});
  auto [out, indices] = largest("max", flat, 0, /*keep_dim=*/false, /*with_values=*/true);
  if (recording(a)) connect(out, make_intrusive<MaxBackward>(a.shape(), std::nullopt, indices), a);
  return out;
}

Tensor argmax(const Tensor& a, int dim, bool keep_dim) {
  check(a.defined(), "[argmax] the operand is undefined");
  return largest("argmax", a, normalize_dim(dim, a.rank()), keep_dim, /*with_values=*/false)
      .indices;
}

Tensor sum_to(const Tensor& a, const Shape& shape) {
  check(a.defined(), "[sum_to] the operand is undefined");
  check<ShapeError>(shape.size() <= a.rank() && broadcast_shapes(a.shape(), shape) == a.shape(),
                    "[sum_to] shape ", shape, " does not broadcast to ", a.shape());
  if (shape == a.shape()) return a;
  Shape kept = shape;
  while (kept.size() < a.rank()) kept.insert(0, 1);
  const DType dtype = is_floating(a.dtype()) ? a.dtype() : DType::i64;
  return reduce("SumToBackward", a, kept, shape, dtype, 1);
}

Tensor exact_square_sum(const std::vector<Tensor>& tensors) {
  const Device device = tensors.empty() ? Device::cpu() : tensors.front().device();
  Tensor limbs = Tensor::zeros({kExactSumSize}, {DType::i64, device, false});
  for (const Tensor& tensor : tensors) {
    op::check_same_device("exact_square_sum", limbs, tensor);
    check<DTypeError>(is_floating(tensor.dtype()),
                      "[exact_square_sum] needs floating tensors, got ", tensor.dtype());
    kernels(limbs).add_squares(op::stream_of(limbs), limbs, packed(tensor));
  }
  return limbs;
}

Tensor exact_sum_root(const Tensor& limbs, DType dtype) {
  check(limbs.defined() && limbs.dtype() == DType::i64 && limbs.shape() == Shape{kExactSumSize} &&
            limbs.is_contiguous(),
        "[exact_sum_root] needs what exact_square_sum gave: ", kExactSumSize, " limbs of i64");
  check<DTypeError>(dtype == DType::f32 || dtype == DType::f64,
                    "[exact_sum_root] gives f32 or f64, not ", dtype);
  Tensor out = Tensor::empty({}, {dtype, limbs.device(), false});
  kernels(limbs).root_of_sum(op::stream_of(limbs), out, limbs);
  return out;
}

Tensor l2_norm(const Tensor& a) {
  check(a.defined(), "[l2_norm] the operand is undefined");
  return exact_sum_root(exact_square_sum({a.detach()}),
                        a.dtype() == DType::f64 ? DType::f64 : DType::f32);
}

}  // namespace cohort
