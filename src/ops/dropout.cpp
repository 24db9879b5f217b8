#include "cohort/ops/dropout.h"

#include <utility>

#include "ops/op.h"

namespace cohort {
namespace {

void drop(const Tensor& out, const Tensor& in, double p, const PhiloxState& state) {
  Tensor packed = in;
  if (!in.is_contiguous()) {
    packed = Tensor::empty(in.shape(), in.options()).copy_(in.detach());
  }
  op::backend_of(in).random().dropout(op::stream_of(in), out, packed, p, state);
}

// Keeps where the random numbers came from instead of the mask, and draws them again.
class DropoutBackward final : public Node {
 public:
  DropoutBackward(double p, const PhiloxState& state) : p_(p), state_(state) {}
  std::string_view name() const override { return "DropoutBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    op::give_written(frame, 0, grad.shape(), grad.dtype(), grad.options(), grad.shape(),
                     [&](const Tensor& out) { drop(out, grad, p_, state_); });
  }
  void release() override {}

 private:
  double p_;
  PhiloxState state_;
};

}  // namespace

Tensor dropout(const Tensor& a, double p, bool training) {
  check(a.defined(), "[dropout] the operand is undefined");
  check(p >= 0 && p <= 1, "[dropout] the probability ", p, " is not in [0, 1]");
  check<DTypeError>(is_floating(a.dtype()), "[dropout] needs a floating tensor, got ", a.dtype());
  if (!training || p == 0) return a;
  const PhiloxState state =
      Context::current().generator.reserve(static_cast<std::uint64_t>(a.numel()));
  Tensor out = Tensor::empty(a.shape(), a.options());
  drop(out, a, p, state);
  if (recording(a)) connect(out, make_intrusive<DropoutBackward>(p, state), a);
  return out;
}

}  // namespace cohort
