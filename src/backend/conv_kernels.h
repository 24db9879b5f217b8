#pragma once

#include "backend/grad_view.h"
#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// Sizes of a two-dimensional window: convolution's kernel or a pool's.
struct WindowSpec {
  std::int64_t kernel_h = 1, kernel_w = 1;
  std::int64_t stride_h = 1, stride_w = 1;
  std::int64_t pad_h = 0, pad_w = 0;
  std::int64_t dilation_h = 1, dilation_w = 1;
};

struct ConvSpec {
  WindowSpec window;
  std::int64_t groups = 1;
};

// Convolution and pooling over images [N, C, H, W]. All views are contiguous, of one floating
// dtype; sums are taken in f32 (f64 for f64) and rounded once.
class ConvKernels {
 public:
  virtual ~ConvKernels() = default;

  // A bias without data is left out.
  virtual void conv2d(const Stream& stream, const View& out, const View& x, const View& weight,
                      const View& bias, const ConvSpec& spec) const = 0;
  virtual void conv2d_backward_data(const Stream& stream, const View& grad_x, const View& grad_out,
                                    const View& weight, const ConvSpec& spec) const = 0;
  virtual void conv2d_backward_weight(const Stream& stream, const GradView& grad_weight,
                                      const GradView& grad_bias, const View& grad_out,
                                      const View& x, const ConvSpec& spec) const = 0;

  // `indices` (i32, out's shape): position of the first largest element in its H x W plane.
  virtual void max_pool2d(const Stream& stream, const View& out, const View& indices, const View& x,
                          const WindowSpec& spec) const = 0;
  virtual void max_pool2d_backward(const Stream& stream, const View& grad_x, const View& grad_out,
                                   const View& indices) const = 0;
  virtual void avg_pool2d(const Stream& stream, const View& out, const View& x,
                          const WindowSpec& spec) const = 0;
  virtual void avg_pool2d_backward(const Stream& stream, const View& grad_x, const View& grad_out,
                                   const WindowSpec& spec) const = 0;
};

}  // namespace cohort::backend
