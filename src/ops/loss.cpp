#include "cohort/ops/loss.h"

#include "cohort/ops/elementwise.h"
#include "cohort/ops/reduce.h"
#include "cohort/ops/shape.h"
#include "ops/arguments.h"

namespace cohort {
namespace {

using backend::CrossEntropySpec;
using backend::View;
using namespace op;  // NOLINT(google-build-using-namespace)

// A contiguous tensor [.., classes] as [rows, classes].
View as_rows(const Tensor& a) {
  View view(a);
  const std::int64_t classes = a.shape().back();
  view.shape = {classes == 0 ? 0 : a.numel() / classes, classes};
  view.strides = contiguous_strides(view.shape);
  return view;
}

class CrossEntropyBackward final : public Node {
 public:
  CrossEntropyBackward(const Tensor& logits, const Tensor& targets, const Tensor& lse,
                       const Tensor& count, const CrossEntropySpec& spec)
      : logits_(logits), targets_(targets), lse_(lse), count_(count), spec_(spec) {}
  std::string_view name() const override { return "CrossEntropyBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor logits = contiguous(logits_.get(*this));
    const Tensor grad = contiguous(frame.grad(0));
    Tensor result = Tensor::empty(logits.shape(), logits.options());
    backend_of(logits).index().cross_entropy_backward(stream_of(logits), as_rows(result), grad,
                                                      as_rows(logits), targets_.get(*this),
                                                      lse_.get(*this), count_.get(*this), spec_);
    frame.set(0, std::move(result));
  }
  void release() override {
    logits_.reset();
    targets_.reset();
    lse_.reset();
    count_.reset();
  }

 private:
  SavedTensor logits_, targets_, lse_, count_;
  CrossEntropySpec spec_;
};

CrossEntropySpec::Reduce kernel_reduction(Reduction reduction) {
  switch (reduction) {
    case Reduction::none:
      return CrossEntropySpec::Reduce::none;
    case Reduction::sum:
      return CrossEntropySpec::Reduce::sum;
    case Reduction::mean:
      break;
  }
  return CrossEntropySpec::Reduce::mean;
}

void check_cross_entropy(const Tensor& logits, const Tensor& targets, double smoothing) {
  check_floating("cross_entropy", logits);
  check<DTypeError>(targets.dtype() == i64 || targets.dtype() == i32,
                    "[cross_entropy] targets are i64 or i32, got ", targets.dtype());
  Shape rows = logits.shape();
  check<ShapeError>(logits.rank() >= 1 && logits.shape().back() > 0,
                    "[cross_entropy] logits of shape ", logits.shape(), " have no classes");
  rows.erase(rows.size() - 1);
  check<ShapeError>(targets.shape() == rows, "[cross_entropy] targets of shape ", targets.shape(),
                    " do not fit logits ", logits.shape(), "; needs ", rows);
  check(logits.device() == targets.device(), "[cross_entropy] logits on ", logits.device(),
        ", targets on ", targets.device());
  check(smoothing >= 0 && smoothing <= 1, "[cross_entropy] label_smoothing ", smoothing,
        " is outside [0, 1]");
}

}  // namespace

Tensor cross_entropy(const Tensor& logits, const Tensor& targets,
                     const CrossEntropyOptions& options) {
  check_cross_entropy(logits, targets, options.label_smoothing);
  const CrossEntropySpec spec{options.ignore_index, options.label_smoothing,
                              kernel_reduction(options.reduction)};
  const bool per_row = options.reduction == Reduction::none;
  const TensorOptions statistics{logits.dtype() == f64 ? f64 : f32, logits.device()};
  const Tensor dense = contiguous(logits.detach());
  const Tensor places = contiguous(targets);
  const Tensor lse = Tensor::empty(targets.shape(), statistics);
  const Tensor count = Tensor::empty({}, statistics);
  Tensor out = Tensor::empty(per_row ? targets.shape() : Shape{}, logits.options());
  backend_of(logits).index().cross_entropy(stream_of(logits), out, lse, count, as_rows(dense),
                                           places, spec);
  if (recording(logits)) {
    connect(out, make_intrusive<CrossEntropyBackward>(logits, places, lse, count, spec), logits);
  }
  return out;
}

Tensor mse_loss(const Tensor& input, const Tensor& target, Reduction reduction) {
  check_floating("mse_loss", input);
  check_alike("mse_loss", input, target);
  check<ShapeError>(input.shape() == target.shape(), "[mse_loss] shapes ", input.shape(), " and ",
                    target.shape(), " differ");
  const Tensor difference = sub(input, target);
  Tensor squares = mul(difference, difference);
  switch (reduction) {
    case Reduction::none:
      return squares;
    case Reduction::sum:
      return sum(squares);
    case Reduction::mean:
      break;
  }
  return mean(squares);
}

}  // namespace cohort
