#include "cohort/ops/norm.h"

#include <cmath>
#include <utility>
#include <vector>

#include "cohort/autograd/autograd.h"
#include "cohort/ops/batch_parts.h"
#include "cohort/ops/cast.h"
#include "cohort/ops/elementwise.h"
#include "cohort/ops/shape.h"
#include "ops/arguments.h"

namespace cohort {
namespace {

using backend::GradView;
using backend::View;
using namespace op;  // NOLINT(google-build-using-namespace)

View reshaped(View view, const Shape& shape) {
  view.shape = shape;
  view.strides = contiguous_strides(shape);
  return view;
}

// [N, C] or [N, C, H, W] as [N, C, S].
View as_channels(const Tensor& x) {
  const std::int64_t space = x.rank() == 4 ? x.size(2) * x.size(3) : 1;
  return reshaped(x, {x.size(0), x.size(1), space});
}

View as_rows(const Tensor& x, std::int64_t width) {
  return reshaped(x, {width == 0 ? 0 : x.numel() / width, width});
}

TensorOptions statistics_options(const Tensor& x) {
  return {x.dtype() == f64 ? f64 : f32, x.device()};
}

// Input, weight and bias, and what forward computed: the backward of both norms differs only in
// the kernel.
class NormBackward : public Node {
 public:
  NormBackward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd)
      : x_(x), mean_(mean), rstd_(rstd) {
    if (weight.defined()) weight_ = SavedTensor(weight);
  }
  void backward(GradFrame& frame) override {
    const Tensor x = contiguous(x_.get(*this));
    const Tensor grad = contiguous(frame.grad(0));
    const Tensor weight = weight_.defined() ? contiguous(weight_.get(*this)) : Tensor();
    const GradView grad_weight = parameter_target(frame, 1, x);
    const GradView grad_bias = parameter_target(frame, 2, x);
    Tensor grad_x;
    if (frame.needs(0)) grad_x = Tensor::empty(x.shape(), x.options());
    run(x, grad, grad_x, weight, mean_.get(*this), rstd_.get(*this), grad_weight, grad_bias);
    if (grad_x.defined()) frame.set(0, std::move(grad_x));
  }
  void release() override {
    x_.reset();
    weight_.reset();
    mean_.reset();
    rstd_.reset();
  }

 private:
  virtual Shape parameter_shape(const Tensor& x) const = 0;
  virtual void run(const Tensor& x, const Tensor& grad, const Tensor& grad_x, const Tensor& weight,
                   const Tensor& mean, const Tensor& rstd, const GradView& grad_weight,
                   const GradView& grad_bias) const = 0;

  GradView parameter_target(GradFrame& frame, int input, const Tensor& x) const {
    if (!frame.needs(input)) return {};
    const GradTarget target = frame.target(input, parameter_shape(x), x.dtype());
    return {target.tensor, true, target.accumulate};
  }

  SavedTensor x_, weight_, mean_, rstd_;
};

class BatchNormBackward final : public NormBackward {
 public:
  BatchNormBackward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                    bool batch_stats)
      : NormBackward(x, weight, mean, rstd), batch_stats_(batch_stats) {}
  std::string_view name() const override { return "BatchNormBackward"; }

 private:
  Shape parameter_shape(const Tensor& x) const override { return {x.size(1)}; }
  void run(const Tensor& x, const Tensor& grad, const Tensor& grad_x, const Tensor& weight,
           const Tensor& mean, const Tensor& rstd, const GradView& grad_weight,
           const GradView& grad_bias) const override {
    backend_of(x).norm().batch_norm_backward(
        stream_of(x), grad_x.defined() ? as_channels(grad_x) : View(), grad_weight, grad_bias,
        as_channels(grad), as_channels(x), optional_view(weight), mean, rstd, batch_stats_);
  }

  bool batch_stats_;
};

class BatchPartsBackward final : public NormBackward {
 public:
  BatchPartsBackward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                     double count, std::shared_ptr<BatchParts> parts)
      : NormBackward(x, weight, mean, rstd), count_(count), parts_(std::move(parts)) {}
  std::string_view name() const override { return "BatchPartsBackward"; }

 private:
  Shape parameter_shape(const Tensor& x) const override { return {x.size(1)}; }
  void run(const Tensor& x, const Tensor& grad, const Tensor& grad_x, const Tensor& weight,
           const Tensor& mean, const Tensor& rstd, const GradView& grad_weight,
           const GradView& grad_bias) const override {
    const backend::NormKernels& kernels = backend_of(x).norm();
    const Tensor sums = Tensor::empty({2, x.size(1)}, {.dtype = f64, .device = x.device()});
    kernels.batch_norm_backward_sums(stream_of(x), sums, grad_weight, grad_bias, as_channels(grad),
                                     as_channels(x), mean, rstd);
    if (!grad_x.defined()) return;
    parts_->add_up(sums);
    kernels.batch_norm_backward_input(stream_of(x), as_channels(grad_x), as_channels(grad),
                                      as_channels(x), optional_view(weight), mean, rstd, sums,
                                      count_);
  }

  double count_;
  std::shared_ptr<BatchParts> parts_;
};

class LayerNormBackward final : public NormBackward {
 public:
  LayerNormBackward(const Tensor& x, const Tensor& weight, const Tensor& mean, const Tensor& rstd,
                    const Shape& shape)
      : NormBackward(x, weight, mean, rstd), shape_(shape) {}
  std::string_view name() const override { return "LayerNormBackward"; }

 private:
  Shape parameter_shape(const Tensor&) const override { return shape_; }
  void run(const Tensor& x, const Tensor& grad, const Tensor& grad_x, const Tensor& weight,
           const Tensor& mean, const Tensor& rstd, const GradView& grad_weight,
           const GradView& grad_bias) const override {
    const std::int64_t width = shape_.product();
    backend_of(x).norm().layer_norm_backward(
        stream_of(x), grad_x.defined() ? as_rows(grad_x, width) : View(), grad_weight, grad_bias,
        as_rows(grad, width), as_rows(x, width), optional_view(weight), mean, rstd);
  }

  Shape shape_;
};

// A parameter, where given, fits `shape` and the input.
Tensor dense_parameter(const char* operation, const char* what, const Tensor& x,
                       const Tensor& parameter, const Shape& shape) {
  if (!parameter.defined()) return {};
  check_alike(operation, x, parameter);
  check<ShapeError>(parameter.shape() == shape, "[", operation, "] ", what, " of shape ",
                    parameter.shape(), " does not fit input ", x.shape(), "; needs ", shape);
  return contiguous(parameter.detach());
}

void check_running(const Tensor& x, const Tensor& mean, const Tensor& var, bool training) {
  check(mean.defined() == var.defined(),
        "[batch_norm] running mean and variance must both be given or both be left out");
  check(training || mean.defined(), "[batch_norm] evaluation needs running statistics");
  if (!mean.defined()) return;
  check<ShapeError>(mean.shape() == Shape{x.size(1)} && var.shape() == mean.shape(),
                    "[batch_norm] running statistics of shapes ", mean.shape(), " and ",
                    var.shape(), " do not fit input ", x.shape());
  check<DTypeError>(is_floating(mean.dtype()) && mean.dtype() == var.dtype(),
                    "[batch_norm] running statistics are ", mean.dtype(), " and ", var.dtype());
  check(mean.is_contiguous() && var.is_contiguous(),
        "[batch_norm] running statistics must be contiguous");
}

// What is wrong with the arguments of batch_norm, the number of values aside.
void check_batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                      const Tensor& running_mean, const Tensor& running_var, bool training) {
  check_floating("batch_norm", x);
  check<ShapeError>(x.rank() == 2 || x.rank() == 4, "[batch_norm] input of shape ", x.shape(),
                    "; needs [N, C] or [N, C, H, W]");
  check(weight.defined() == bias.defined(),
        "[batch_norm] weight and bias must both be given or both be left out");
  check_running(x, running_mean, running_var, training);
}

// Of the values of a channel: how many there are, their mean, and the sum of squared deviations.
struct Moments {
  double count = 0;
  std::vector<double> mean, squares;

  Tensor scaled_squares(double divisor, Device device) const {
    std::vector<double> values = squares;
    for (double& value : values) value = divisor > 0 ? value / divisor : 0;
    return to_tensor(values, device);
  }
  static Tensor to_tensor(const std::vector<double>& values, Device device) {
    return Tensor::from(values, {static_cast<std::int64_t>(values.size())}).to(device);
  }
};

// Those of all parts together, given one row of batch_norm_moments per part.
Moments combined(const Tensor& rows, std::size_t channels) {
  const std::vector<double> values = rows.to(Device::cpu()).to_vector<double>();
  Moments all;
  all.mean.resize(channels);
  all.squares.resize(channels);
  const std::size_t width = 1 + 2 * channels;
  for (const double* row = values.data(); row != values.data() + values.size(); row += width) {
    const double count = row[0];
    if (count == 0) continue;
    const double share = count / (all.count + count);
    for (std::size_t c = 0; c < channels; ++c) {
      const double distance = row[1 + c] - all.mean[c];
      all.mean[c] += distance * share;
      all.squares[c] += row[1 + channels + c] + distance * distance * all.count * share;
    }
    all.count += count;
  }
  return all;
}

// running = (1 - momentum) * running + momentum * value, rounded once.
void move_running(Tensor running, const Tensor& value, double momentum) {
  running.copy_(add(mul(running.to(f64), 1 - momentum), mul(value, momentum)));
}

}  // namespace

// The running statistics are taken by value, as handles to write to.
// NOLINTBEGIN(performance-unnecessary-value-param)
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                  Tensor running_var, const BatchNormOptions& options) {
  // NOLINTEND(performance-unnecessary-value-param)
  check_batch_norm(x, weight, bias, running_mean, running_var, options.training);
  const Tensor scale = dense_parameter("batch_norm", "weight", x, weight, {x.size(1)});
  const Tensor shift = dense_parameter("batch_norm", "bias", x, bias, {x.size(1)});
  const View channels = as_channels(x);
  check(!options.training || channels.shape[0] * channels.shape[2] > 1,
        "[batch_norm] training needs more than one value per channel, got input ", x.shape());
  if (options.training && running_mean.defined()) {
    running_mean.storage().bump_version();
    running_var.storage().bump_version();
  }
  const Tensor dense = contiguous(x.detach());
  const Tensor mean = Tensor::empty({x.size(1)}, statistics_options(x));
  const Tensor rstd = Tensor::empty({x.size(1)}, statistics_options(x));
  Tensor out = Tensor::empty(x.shape(), x.options());
  backend_of(x).norm().batch_norm(
      stream_of(x), as_channels(out), mean, rstd, as_channels(dense), optional_view(scale),
      optional_view(shift),
      {optional_view(running_mean), optional_view(running_var), options.momentum}, options.training,
      options.eps);
  if (recording(x, weight, bias)) {
    connect(out, make_intrusive<BatchNormBackward>(x, weight, mean, rstd, options.training), x,
            weight, bias);
  }
  return out;
}

// NOLINTBEGIN(performance-unnecessary-value-param)
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, Tensor running_mean,
                  Tensor running_var, const BatchNormOptions& options,
                  std::shared_ptr<BatchParts> parts) {
  // NOLINTEND(performance-unnecessary-value-param)
  if (!parts || !options.training || x.device().type == DeviceType::meta) {
    return batch_norm(x, weight, bias, running_mean, running_var, options);
  }
  check_batch_norm(x, weight, bias, running_mean, running_var, true);
  const std::int64_t channels = x.size(1);
  const Tensor scale = dense_parameter("batch_norm", "weight", x, weight, {channels});
  const Tensor shift = dense_parameter("batch_norm", "bias", x, bias, {channels});
  const backend::NormKernels& kernels = backend_of(x).norm();
  const Tensor dense = contiguous(x.detach());
  const Tensor row = Tensor::empty({1 + 2 * channels}, {.dtype = f64, .device = x.device()});
  kernels.batch_norm_moments(stream_of(x), row, as_channels(dense));
  const Moments all = combined(parts->gather(row), static_cast<std::size_t>(channels));
  check(all.count != 1, "[batch_norm] training needs more than one value per channel, and all ",
        "parts of the batch have one together; this part is ", x.shape());
  const Tensor all_mean = Moments::to_tensor(all.mean, x.device());
  const Tensor all_var = all.scaled_squares(all.count, x.device());
  if (running_mean.defined() && all.count > 0) {
    const NoGrad no_grad;
    move_running(running_mean, all_mean, options.momentum);
    move_running(running_var, all.scaled_squares(all.count - 1, x.device()), options.momentum);
  }
  const Tensor mean = Tensor::empty({channels}, statistics_options(x));
  const Tensor rstd = Tensor::empty({channels}, statistics_options(x));
  Tensor out = Tensor::empty(x.shape(), x.options());
  kernels.batch_norm(stream_of(x), as_channels(out), mean, rstd, as_channels(dense),
                     optional_view(scale), optional_view(shift), {View(all_mean), View(all_var), 0},
                     false, options.eps);
  if (recording(x, weight, bias)) {
    connect(out,
            make_intrusive<BatchPartsBackward>(x, weight, mean, rstd, all.count, std::move(parts)),
            x, weight, bias);
  }
  return out;
}

Tensor layer_norm(const Tensor& x, const Shape& normalized_shape, const Tensor& weight,
                  const Tensor& bias, double eps) {
  check_floating("layer_norm", x);
  const int shift = x.rank() - normalized_shape.size();
  bool fits = shift >= 0 && !normalized_shape.empty();
  for (int i = 0; fits && i < normalized_shape.size(); ++i) {
    fits = x.shape()[shift + i] == normalized_shape[i];
  }
  check<ShapeError>(fits, "[layer_norm] input ", x.shape(), " does not end in ", normalized_shape);
  const Tensor scale = dense_parameter("layer_norm", "weight", x, weight, normalized_shape);
  const Tensor offset = dense_parameter("layer_norm", "bias", x, bias, normalized_shape);
  const std::int64_t width = normalized_shape.product();
  const Tensor dense = contiguous(x.detach());
  const View rows = as_rows(dense, width);
  const Tensor mean = Tensor::empty({rows.shape[0]}, statistics_options(x));
  const Tensor rstd = Tensor::empty({rows.shape[0]}, statistics_options(x));
  Tensor out = Tensor::empty(x.shape(), x.options());
  backend_of(x).norm().layer_norm(stream_of(x), as_rows(out, width), mean, rstd, rows,
                                  optional_view(scale), optional_view(offset), eps);
  if (recording(x, weight, bias)) {
    connect(out, make_intrusive<LayerNormBackward>(x, weight, mean, rstd, normalized_shape), x,
            weight, bias);
  }
  return out;
}

}  // namespace cohort
