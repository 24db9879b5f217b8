#include "cohort/ops/softmax.h"

#include "cohort/ops/shape.h"
#include "ops/arguments.h"

namespace cohort {
namespace {

using backend::View;
using namespace op;  // NOLINT(google-build-using-namespace)

// A contiguous tensor as [outer, n, inner] around dimension `dim`.
View around(const Tensor& a, int dim) {
  Shape shape{1, 1, 1};
  for (int i = 0; i < a.rank(); ++i) shape[i < dim ? 0 : (i == dim ? 1 : 2)] *= a.shape()[i];
  View view(a);
  view.shape = shape;
  view.strides = contiguous_strides(shape);
  return view;
}

class SoftmaxBackward final : public Node {
 public:
  SoftmaxBackward(const Tensor& out, int dim, bool log) : out_(out), dim_(dim), log_(log) {}
  std::string_view name() const override { return log_ ? "LogSoftmaxBackward" : "SoftmaxBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor& out = out_.get(*this);
    const Tensor grad = contiguous(frame.grad(0));
    Tensor result = Tensor::empty(out.shape(), out.options());
    backend_of(out).norm().softmax_backward(stream_of(out), around(result, dim_),
                                            around(grad, dim_), around(out, dim_), log_);
    frame.set(0, std::move(result));
  }
  void release() override { out_.reset(); }

 private:
  SavedTensor out_;
  int dim_;
  bool log_;
};

Tensor softmax(const char* operation, const Tensor& a, int dim, bool log) {
  check_floating(operation, a);
  dim = a.rank() == 0 ? 0 : normalize_dim(dim, a.rank());
  const Tensor in = contiguous(a.detach());
  Tensor out = Tensor::empty(a.shape(), a.options());
  backend_of(a).norm().softmax(stream_of(a), around(out, dim), around(in, dim), log);
  if (recording(a)) connect(out, make_intrusive<SoftmaxBackward>(out, dim, log), a);
  return out;
}

}  // namespace

Tensor softmax(const Tensor& a, int dim) {
  return softmax("softmax", a, dim, false);
}

Tensor log_softmax(const Tensor& a, int dim) {
  return softmax("log_softmax", a, dim, true);
}

}  // namespace cohort
