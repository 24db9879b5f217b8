// Element-wise operations of two and three tensors.

#include <cmath>
#include <utility>

#include "cohort/ops/elementwise.h"
#include "ops/op.h"

namespace cohort {
namespace {

using backend::BinaryOp;
using backend::broadcast_view;
using backend::TernaryOp;
using backend::UnaryOp;

const backend::ElementwiseKernels& kernels(const Tensor& tensor) {
  return op::backend_of(tensor).elementwise();
}

// What the derivatives of two broadcast operands share: shapes and dtypes to come back to.
class BroadcastBackward : public Node {
 public:
  BroadcastBackward(std::string_view name, const Tensor& a, const Tensor& b)
      : name_(name), shapes_{a.shape(), b.shape()}, dtypes_{a.dtype(), b.dtype()} {}
  std::string_view name() const override { return name_; }
  void release() override {}

 protected:
  void pass(GradFrame& frame, int i, const Tensor& grad) const {
    if (frame.needs(i)) op::give(frame, i, grad, shapes_[i], dtypes_[i]);
  }
  template <typename Write>
  void written(GradFrame& frame, int i, const Tensor& grad, Write&& write) const {
    if (!frame.needs(i)) return;
    op::give_written(frame, i, shapes_[i], dtypes_[i], grad.options(), grad.shape(),
                     std::forward<Write>(write));
  }

 private:
  std::string_view name_;
  Shape shapes_[2];
  DType dtypes_[2];
};

class AddBackward final : public BroadcastBackward {
 public:
  using BroadcastBackward::BroadcastBackward;
  void backward(GradFrame& frame) override {
    pass(frame, 0, frame.grad(0));
    pass(frame, 1, frame.grad(0));
  }
};

class SubBackward final : public BroadcastBackward {
 public:
  using BroadcastBackward::BroadcastBackward;
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    pass(frame, 0, grad);
    written(frame, 1, grad, [&](const Tensor& out) {
      kernels(grad).unary(op::stream_of(grad), UnaryOp::neg, out, grad);
    });
  }
};

// da = dout * b, db = dout * a.
class MulBackward final : public BroadcastBackward {
 public:
  MulBackward(const Tensor& a, const Tensor& b) : BroadcastBackward("MulBackward", a, b) {
    if (recording(b)) a_ = SavedTensor(a);
    if (recording(a)) b_ = SavedTensor(b);
  }
  void backward(GradFrame& frame) override {
    times(frame, 0, b_);
    times(frame, 1, a_);
  }
  void release() override {
    a_.reset();
    b_.reset();
  }

 private:
  void times(GradFrame& frame, int i, const SavedTensor& other) {
    const Tensor& grad = frame.grad(0);
    written(frame, i, grad, [&](const Tensor& out) {
      kernels(grad).binary(op::stream_of(grad), BinaryOp::mul, out, grad,
                           broadcast_view(other.get(*this), grad.shape()));
    });
  }

  SavedTensor a_;
  SavedTensor b_;
};

// da = dout / b, db = -dout * (a / b) / b.
class DivBackward final : public BroadcastBackward {
 public:
  DivBackward(const Tensor& a, const Tensor& b) : BroadcastBackward("DivBackward", a, b), b_(b) {
    if (recording(b)) a_ = SavedTensor(a);
  }
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    const backend::View b = broadcast_view(b_.get(*this), grad.shape());
    written(frame, 0, grad, [&](const Tensor& out) {
      kernels(grad).binary(op::stream_of(grad), BinaryOp::div, out, grad, b);
    });
    written(frame, 1, grad, [&](const Tensor& out) {
      kernels(grad).ternary(op::stream_of(grad), TernaryOp::div_grad, out, grad,
                            broadcast_view(a_.get(*this), grad.shape()), b);
    });
  }
  void release() override {
    a_.reset();
    b_.reset();
  }

 private:
  SavedTensor a_;
  SavedTensor b_;
};

// The gradient goes to the operand that won, in halves where both did.
class SelectBackward final : public BroadcastBackward {
 public:
  SelectBackward(std::string_view name, const Tensor& a, const Tensor& b, bool larger)
      : BroadcastBackward(name, a, b), a_(a), b_(b), larger_(larger) {}
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    const backend::View a = broadcast_view(a_.get(*this), grad.shape());
    const backend::View b = broadcast_view(b_.get(*this), grad.shape());
    const auto share = [&](const Tensor& out, const backend::View& own,
                           const backend::View& other) {
      kernels(grad).ternary(op::stream_of(grad), TernaryOp::larger_grad, out, grad,
                            larger_ ? own : other, larger_ ? other : own);
    };
    written(frame, 0, grad, [&](const Tensor& out) { share(out, a, b); });
    written(frame, 1, grad, [&](const Tensor& out) { share(out, b, a); });
  }
  void release() override {
    a_.reset();
    b_.reset();
  }

 private:
  SavedTensor a_;
  SavedTensor b_;
  bool larger_;
};

class WhereBackward final : public BroadcastBackward {
 public:
  WhereBackward(const Tensor& condition, const Tensor& a, const Tensor& b)
      : BroadcastBackward("WhereBackward", a, b), condition_(condition) {}
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    const backend::View condition = broadcast_view(condition_.get(*this), grad.shape());
    const auto keep = [&](BinaryOp op) {
      return [&, op](const Tensor& out) {
        kernels(grad).binary(op::stream_of(grad), op, out, grad, condition);
      };
    };
    written(frame, 0, grad, keep(BinaryOp::keep_if));
    written(frame, 1, grad, keep(BinaryOp::keep_if_not));
  }
  void release() override { condition_.reset(); }

 private:
  SavedTensor condition_;
};

Tensor combine(BinaryOp op, const Tensor& a, const Tensor& b, DType dtype) {
  const Shape shape = a.shape() == b.shape() ? a.shape() : broadcast_shapes(a.shape(), b.shape());
  Tensor out = Tensor::empty(shape, {dtype, a.device(), false});
  kernels(a).binary(op::stream_of(a), op, out, broadcast_view(a, shape), broadcast_view(b, shape));
  return out;
}

Tensor compare(const char* operation, BinaryOp op, const Tensor& a, const Tensor& b) {
  op::check_same_device(operation, a, b);
  return combine(op, a, b, DType::boolean);
}

// Throws unless `b` can be combined into `a` in place.
void check_in_place(const char* operation, const Tensor& a, const Tensor& b) {
  op::check_same_device(operation, a, b);
  check<ShapeError>(a.shape() == b.shape() || broadcast_shapes(a.shape(), b.shape()) == a.shape(),
                    "[", operation, "] shape ", b.shape(), " does not broadcast to ", a.shape());
  check<DTypeError>(is_floating(a.dtype()) || !is_floating(b.dtype()), "[", operation,
                    "] a result of ", b.dtype(), " does not fit into a tensor of ", a.dtype(),
                    "; convert it with to(", b.dtype(), ")");
}

}  // namespace

Tensor add(const Tensor& a, const Tensor& b) {
  op::check_same_device("add", a, b);
  Tensor out = combine(BinaryOp::add, a, b, promote(a.dtype(), b.dtype()));
  if (recording(a, b)) connect(out, make_intrusive<AddBackward>("AddBackward", a, b), a, b);
  return out;
}

Tensor sub(const Tensor& a, const Tensor& b) {
  op::check_same_device("sub", a, b);
  Tensor out = combine(BinaryOp::sub, a, b, promote(a.dtype(), b.dtype()));
  if (recording(a, b)) connect(out, make_intrusive<SubBackward>("SubBackward", a, b), a, b);
  return out;
}

Tensor mul(const Tensor& a, const Tensor& b) {
  op::check_same_device("mul", a, b);
  Tensor out = combine(BinaryOp::mul, a, b, promote(a.dtype(), b.dtype()));
  if (recording(a, b)) connect(out, make_intrusive<MulBackward>(a, b), a, b);
  return out;
}

Tensor div(const Tensor& a, const Tensor& b) {
  op::check_same_device("div", a, b);
  const DType dtype = promote(a.dtype(), b.dtype());
  Tensor out = combine(BinaryOp::div, a, b, is_floating(dtype) ? dtype : DType::f32);
  if (recording(a, b)) connect(out, make_intrusive<DivBackward>(a, b), a, b);
  return out;
}

Tensor maximum(const Tensor& a, const Tensor& b) {
  op::check_same_device("maximum", a, b);
  Tensor out = combine(BinaryOp::maximum, a, b, promote(a.dtype(), b.dtype()));
  if (recording(a, b)) {
    connect(out, make_intrusive<SelectBackward>("MaximumBackward", a, b, true), a, b);
  }
  return out;
}

Tensor minimum(const Tensor& a, const Tensor& b) {
  op::check_same_device("minimum", a, b);
  Tensor out = combine(BinaryOp::minimum, a, b, promote(a.dtype(), b.dtype()));
  if (recording(a, b)) {
    connect(out, make_intrusive<SelectBackward>("MinimumBackward", a, b, false), a, b);
  }
  return out;
}

Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b) {
  op::check_same_device("where", condition, a);
  op::check_same_device("where", a, b);
  check<DTypeError>(condition.dtype() == DType::boolean,
                    "[where] the condition must be a bool tensor, got ", condition.dtype());
  const Shape shape = broadcast_shapes(condition.shape(), broadcast_shapes(a.shape(), b.shape()));
  Tensor out = Tensor::empty(shape, {promote(a.dtype(), b.dtype()), a.device(), false});
  kernels(a).ternary(op::stream_of(a), TernaryOp::where, out, broadcast_view(condition, shape),
                     broadcast_view(a, shape), broadcast_view(b, shape));
  if (recording(a, b)) connect(out, make_intrusive<WhereBackward>(condition, a, b), a, b);
  return out;
}

Tensor equal(const Tensor& a, const Tensor& b) {
  return compare("equal", BinaryOp::equal, a, b);
}
Tensor not_equal(const Tensor& a, const Tensor& b) {
  return compare("not_equal", BinaryOp::not_equal, a, b);
}
Tensor less(const Tensor& a, const Tensor& b) {
  return compare("less", BinaryOp::less, a, b);
}
Tensor less_equal(const Tensor& a, const Tensor& b) {
  return compare("less_equal", BinaryOp::less_equal, a, b);
}
Tensor greater(const Tensor& a, const Tensor& b) {
  return compare("greater", BinaryOp::greater, a, b);
}
Tensor greater_equal(const Tensor& a, const Tensor& b) {
  return compare("greater_equal", BinaryOp::greater_equal, a, b);
}

Tensor& add_(Tensor& a, const Tensor& b, double alpha) {
  check_in_place("add_", a, b);
  check<DTypeError>(is_floating(a.dtype()) || alpha == std::trunc(alpha), "[add_] a fraction of ",
                    alpha, " does not fit into a tensor of ", a.dtype());
  op::begin_write("add_", a);
  kernels(a).binary(op::stream_of(a), alpha == 1 ? BinaryOp::add : BinaryOp::add_scaled, a, a,
                    broadcast_view(op::disjoint(b, a), a.shape()), {.p = alpha});
  return a;
}

Tensor& mul_(Tensor& a, const Tensor& b) {
  check_in_place("mul_", a, b);
  op::begin_write("mul_", a);
  kernels(a).binary(op::stream_of(a), BinaryOp::mul, a, a,
                    broadcast_view(op::disjoint(b, a), a.shape()));
  return a;
}

}  // namespace cohort
