#include "cohort/ops/conv.h"

#include <limits>

#include "cohort/ops/shape.h"
#include "ops/arguments.h"

namespace cohort {
namespace {

using backend::ConvSpec;
using backend::GradView;
using backend::WindowSpec;
using namespace op;  // NOLINT(google-build-using-namespace)

// Outputs along one dimension.
std::int64_t output_size(const char* operation, const Shape& image, int dim, std::int64_t kernel,
                         std::int64_t stride, std::int64_t pad, std::int64_t dilation) {
  check(kernel > 0 && stride > 0 && pad >= 0 && dilation > 0, "[", operation,
        "] kernel, stride and dilation must be positive and padding not negative, got ", kernel,
        ", ", stride, ", ", dilation, " and ", pad);
  const std::int64_t room = image[dim] + 2 * pad - dilation * (kernel - 1) - 1;
  check<ShapeError>(room >= 0, "[", operation, "] a kernel of ", kernel, " with dilation ",
                    dilation, " does not fit into size ", image[dim], " with padding ", pad,
                    " of input ", image);
  return room / stride + 1;
}

Shape output_shape(const char* operation, const Shape& image, std::int64_t channels,
                   const WindowSpec& w) {
  return {image[0], channels,
          output_size(operation, image, 2, w.kernel_h, w.stride_h, w.pad_h, w.dilation_h),
          output_size(operation, image, 3, w.kernel_w, w.stride_w, w.pad_w, w.dilation_w)};
}

void check_image(const char* operation, const Tensor& x) {
  check_floating(operation, x);
  check<ShapeError>(x.rank() == 4, "[", operation, "] input of shape ", x.shape(),
                    "; needs [N, C, H, W]");
}

class Conv2dBackward final : public Node {
 public:
  Conv2dBackward(const Tensor& x, const Tensor& weight, const ConvSpec& spec)
      : x_shape_(x.shape()), weight_shape_(weight.shape()), spec_(spec) {
    if (recording(weight)) x_ = SavedTensor(x);
    if (recording(x)) weight_ = SavedTensor(weight);
  }
  std::string_view name() const override { return "Conv2dBackward"; }
  // The parameters' gradients come first: others may wait for them, nobody here for the input's.
  void backward(GradFrame& frame) override {
    const Tensor grad = contiguous(frame.grad(0));
    if (frame.needs(1) || frame.needs(2)) parameters(frame, grad);
    if (!frame.needs(0)) return;
    const Tensor weight = contiguous(weight_.get(*this));
    Tensor result = Tensor::empty(x_shape_, grad.options());
    backend_of(grad).conv().conv2d_backward_data(stream_of(grad), result, grad, weight, spec_);
    frame.set(0, std::move(result));
  }
  void release() override {
    x_.reset();
    weight_.reset();
  }

 private:
  void parameters(GradFrame& frame, const Tensor& grad) {
    // A bias alone needs no input, only its shape.
    const Tensor x = x_.defined() ? contiguous(x_.get(*this)) : Tensor();
    backend::View image = optional_view(x);
    image.shape = x_shape_;
    GradView weight_view;
    GradView bias_view;
    if (frame.needs(1)) {
      const GradTarget target = frame.target(1, weight_shape_, grad.dtype());
      weight_view = {target.tensor, true, target.accumulate};
    } else {
      weight_view.view.shape = weight_shape_;
    }
    if (frame.needs(2)) {
      const GradTarget target = frame.target(2, {weight_shape_[0]}, grad.dtype());
      bias_view = {target.tensor, true, target.accumulate};
    }
    backend_of(grad).conv().conv2d_backward_weight(stream_of(grad), weight_view, bias_view, grad,
                                                   image, spec_);
  }

  Shape x_shape_, weight_shape_;
  ConvSpec spec_;
  SavedTensor x_, weight_;
};

class MaxPool2dBackward final : public Node {
 public:
  MaxPool2dBackward(const Shape& shape, const Tensor& indices) : shape_(shape), indices_(indices) {}
  std::string_view name() const override { return "MaxPool2dBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor grad = contiguous(frame.grad(0));
    Tensor result = Tensor::empty(shape_, grad.options());
    backend_of(grad).conv().max_pool2d_backward(stream_of(grad), result, grad, indices_.get(*this));
    frame.set(0, std::move(result));
  }
  void release() override { indices_.reset(); }

 private:
  Shape shape_;
  SavedTensor indices_;
};

class AvgPool2dBackward final : public Node {
 public:
  AvgPool2dBackward(const Shape& shape, const WindowSpec& spec) : shape_(shape), spec_(spec) {}
  std::string_view name() const override { return "AvgPool2dBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor grad = contiguous(frame.grad(0));
    Tensor result = Tensor::empty(shape_, grad.options());
    backend_of(grad).conv().avg_pool2d_backward(stream_of(grad), result, grad, spec_);
    frame.set(0, std::move(result));
  }
  void release() override {}

 private:
  Shape shape_;
  WindowSpec spec_;
};

WindowSpec pool_window(const char* operation, const Tensor& x, const Pool2dOptions& options) {
  check_image(operation, x);
  WindowSpec w;
  w.kernel_h = options.kernel.h;
  w.kernel_w = options.kernel.w;
  w.stride_h = options.stride.h == 0 ? options.kernel.h : options.stride.h;
  w.stride_w = options.stride.w == 0 ? options.kernel.w : options.stride.w;
  w.pad_h = options.padding.h;
  w.pad_w = options.padding.w;
  check(w.pad_h <= w.kernel_h / 2 && w.pad_w <= w.kernel_w / 2, "[", operation, "] padding ",
        w.pad_h, " x ", w.pad_w, " is more than half of the kernel ", w.kernel_h, " x ",
        w.kernel_w);
  check<ShapeError>(x.size(2) * x.size(3) <= std::numeric_limits<std::int32_t>::max(), "[",
                    operation, "] images of ", x.size(2), " x ", x.size(3), " are too large");
  return w;
}

}  // namespace

Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias,
              const Conv2dOptions& options) {
  check_image("conv2d", x);
  check_alike("conv2d", x, weight);
  const std::int64_t groups = options.groups;
  check<ShapeError>(groups > 0 && weight.rank() == 4 && x.size(1) % groups == 0 &&
                        weight.size(0) % groups == 0 && weight.size(1) * groups == x.size(1),
                    "[conv2d] weight ", weight.shape(), " does not fit input ", x.shape(), " in ",
                    groups, " groups; needs [O, C / groups, kH, kW]");
  if (bias.defined()) {
    check_alike("conv2d", x, bias);
    check<ShapeError>(bias.shape() == Shape{weight.size(0)}, "[conv2d] bias ", bias.shape(),
                      " does not fit weight ", weight.shape());
  }
  ConvSpec spec;
  spec.groups = groups;
  spec.window = {weight.size(2),    weight.size(3),    options.stride.h,   options.stride.w,
                 options.padding.h, options.padding.w, options.dilation.h, options.dilation.w};
  Tensor out =
      Tensor::empty(output_shape("conv2d", x.shape(), weight.size(0), spec.window), x.options());
  const Tensor image = contiguous(x.detach());
  const Tensor filter = contiguous(weight.detach());
  const Tensor shift = bias.defined() ? contiguous(bias.detach()) : Tensor();
  backend_of(x).conv().conv2d(stream_of(x), out, image, filter, optional_view(shift), spec);
  if (recording(x, weight, bias)) {
    connect(out, make_intrusive<Conv2dBackward>(x, weight, spec), x, weight, bias);
  }
  return out;
}

Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options) {
  const WindowSpec w = pool_window("max_pool2d", x, options);
  const Shape shape = output_shape("max_pool2d", x.shape(), x.size(1), w);
  const Tensor image = contiguous(x.detach());
  Tensor out = Tensor::empty(shape, x.options());
  const Tensor indices = Tensor::empty(shape, {i32, x.device()});
  backend_of(x).conv().max_pool2d(stream_of(x), out, indices, image, w);
  if (recording(x)) connect(out, make_intrusive<MaxPool2dBackward>(x.shape(), indices), x);
  return out;
}

Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options) {
  const WindowSpec w = pool_window("avg_pool2d", x, options);
  const Tensor image = contiguous(x.detach());
  Tensor out = Tensor::empty(output_shape("avg_pool2d", x.shape(), x.size(1), w), x.options());
  backend_of(x).conv().avg_pool2d(stream_of(x), out, image, w);
  if (recording(x)) connect(out, make_intrusive<AvgPool2dBackward>(x.shape(), w), x);
  return out;
}

}  // namespace cohort
