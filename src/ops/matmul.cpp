#include "cohort/ops/matmul.h"

#include <utility>

#include "cohort/ops/reduce.h"
#include "cohort/ops/shape.h"
#include "ops/arguments.h"

namespace cohort {
namespace {

using backend::View;
using op::check_alike;
using op::check_floating;
using op::optional_view;
using op::stream_of;

const backend::MatmulKernels& kernels(const Tensor& tensor) {
  return op::backend_of(tensor).matmul();
}

// `a` itself where a GEMM can read it in place, else a row-major copy; without a graph.
Tensor gemm_operand(const Tensor& a) {
  return backend::is_gemm_operand(a) ? a : clone(a.detach());
}

// The view with its last two dimensions exchanged.
View transposed(View view) {
  const int rank = view.shape.size();
  std::swap(view.shape[rank - 2], view.shape[rank - 1]);
  std::swap(view.strides[rank - 2], view.strides[rank - 1]);
  return view;
}

// The view with its leading dimensions stretched to those of `shape`.
View with_batch(const View& view, const Shape& shape) {
  const int shift = shape.size() - view.shape.size();
  View result = view;
  result.shape = shape;
  result.strides = Dims::filled(shape.size(), 0);
  for (int i = 0; i < view.shape.size(); ++i) {
    const bool matrix = i >= view.shape.size() - 2;
    if (matrix) result.shape[i + shift] = view.shape[i];
    if (matrix || view.shape[i] != 1) result.strides[i + shift] = view.strides[i];
  }
  result.numel = result.shape.product();
  return result;
}

// out = a b over out's leading dimensions, plus out when `accumulate`.
void run_matmul(const Tensor& out, const View& a, const View& b, bool accumulate) {
  kernels(out).matmul(stream_of(out), out, with_batch(a, out.shape()), with_batch(b, out.shape()),
                      accumulate);
}

// da = dout b^T, db = a^T dout: the GEMM reads the transposed operands where they lie.
class MatmulBackward final : public Node {
 public:
  MatmulBackward(const Tensor& a, const Tensor& b) : a_shape_(a.shape()), b_shape_(b.shape()) {
    if (recording(b)) a_ = SavedTensor(a);
    if (recording(a)) b_ = SavedTensor(b);
  }
  std::string_view name() const override { return "MatmulBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor grad = gemm_operand(frame.grad(0));
    if (frame.needs(1)) {
      give(frame, 1, b_shape_, grad, transposed(gemm_operand(a_.get(*this))), grad);
    }
    if (frame.needs(0)) {
      give(frame, 0, a_shape_, grad, grad, transposed(gemm_operand(b_.get(*this))));
    }
  }
  void release() override {
    a_.reset();
    b_.reset();
  }

 private:
  // The gradient of input `i`: left times right, summed over dimensions along which the input was
  // repeated.
  static void give(GradFrame& frame, int i, const Shape& shape, const Tensor& grad,
                   const View& left, const View& right) {
    Shape full = grad.shape();
    full[full.size() - 2] = shape[shape.size() - 2];
    full[full.size() - 1] = shape[shape.size() - 1];
    if (full == shape) {
      const GradTarget target = frame.target(i, shape, grad.dtype());
      run_matmul(target.tensor, left, right, target.accumulate);
      return;
    }
    const Tensor product = Tensor::empty(full, grad.options());
    run_matmul(product, left, right, false);
    frame.set(i, sum_to(product, shape));
  }

  Shape a_shape_, b_shape_;
  SavedTensor a_, b_;
};

// The leading dimensions merged into rows, as a GEMM operand; without a graph.
Tensor as_rows(const Tensor& a) {
  if (a.rank() == 2) return gemm_operand(a);
  Shape leading = a.shape();
  leading.erase(leading.size() - 1);
  return gemm_operand(reshape(a.detach(), {leading.product(), a.size(-1)}));
}

class LinearBackward final : public Node {
 public:
  LinearBackward(const Tensor& x, const Tensor& weight)
      : x_shape_(x.shape()), weight_shape_(weight.shape()) {
    if (recording(weight)) x_ = SavedTensor(x);
    if (recording(x)) weight_ = SavedTensor(weight);
  }
  std::string_view name() const override { return "LinearBackward"; }
  // The parameters' gradients come first: others may wait for them, nobody here for the input's.
  void backward(GradFrame& frame) override {
    const Tensor grad = as_rows(frame.grad(0));
    if (frame.needs(1)) {
      const GradTarget target = frame.target(1, weight_shape_, grad.dtype());
      run_matmul(target.tensor, transposed(grad), as_rows(x_.get(*this)), target.accumulate);
    }
    if (frame.needs(2)) {
      const Tensor rows = contiguous(grad);
      const GradTarget target = frame.target(2, {weight_shape_[0]}, grad.dtype());
      kernels(rows).sum_rows(stream_of(rows), target.tensor, rows, target.accumulate);
    }
    if (frame.needs(0)) {
      const GradTarget target = frame.target(0, x_shape_, grad.dtype());
      run_matmul(reshape(target.tensor, {grad.size(0), weight_shape_[1]}), grad,
                 gemm_operand(weight_.get(*this)), target.accumulate);
    }
  }
  void release() override {
    x_.reset();
    weight_.reset();
  }

 private:
  Shape x_shape_, weight_shape_;
  SavedTensor x_, weight_;
};

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b) {
  check_floating("matmul", a);
  check_alike("matmul", a, b);
  check<ShapeError>(a.rank() >= 2 && b.rank() >= 2 && a.size(-1) == b.size(-2), "[matmul] shapes ",
                    a.shape(), " and ", b.shape(), " do not fit: needs [.., m, k] and [.., k, n]");
  if (b.rank() == 2 && a.rank() > 2 && a.is_contiguous() && a.numel() > 0) {
    // One tall product instead of many; b's gradient is then one product too.
    Shape shape = a.shape();
    shape.back() = b.size(1);
    return reshape(matmul(reshape(a, {-1, a.size(-1)}), b), shape);
  }
  Shape batch_a = a.shape();
  Shape batch_b = b.shape();
  for (int i = 0; i < 2; ++i) {
    batch_a.erase(batch_a.size() - 1);
    batch_b.erase(batch_b.size() - 1);
  }
  Shape shape = broadcast_shapes(batch_a, batch_b);
  shape.push_back(a.size(-2));
  shape.push_back(b.size(-1));
  Tensor out = Tensor::empty(shape, a.options());
  run_matmul(out, gemm_operand(a), gemm_operand(b), false);
  if (recording(a, b)) connect(out, make_intrusive<MatmulBackward>(a, b), a, b);
  return out;
}

Tensor linear(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  check_floating("linear", x);
  check_alike("linear", x, weight);
  check<ShapeError>(x.rank() >= 1 && weight.rank() == 2 && x.size(-1) == weight.size(1),
                    "[linear] shapes ", x.shape(), " and ", weight.shape(),
                    " do not fit: needs x [.., in] and weight [out, in]");
  if (bias.defined()) {
    check_alike("linear", x, bias);
    check<ShapeError>(bias.shape() == Shape{weight.size(0)}, "[linear] bias ", bias.shape(),
                      " does not fit weight ", weight.shape());
  }
  Shape shape = x.shape();
  shape.back() = weight.size(0);
  Tensor out = Tensor::empty(shape, x.options());
  const Tensor input = as_rows(x);
  const Tensor dense_bias = bias.defined() ? contiguous(bias.detach()) : Tensor();
  kernels(x).linear(stream_of(x), reshape(out, {input.size(0), weight.size(0)}), input,
                    gemm_operand(weight), optional_view(dense_bias));
  if (recording(x, weight, bias)) {
    connect(out, make_intrusive<LinearBackward>(x, weight), x, weight, bias);
  }
  return out;
}

}  // namespace cohort
