#pragma once

#include <array>

#include "cohort/core/tensor.h"

namespace cohort {

// Height and width; one number sets both.
struct Pair {
  std::int64_t h = 0;
  std::int64_t w = 0;
  constexpr Pair(std::int64_t both) : h(both), w(both) {}  // NOLINT(google-explicit-constructor)
  constexpr Pair(std::int64_t height, std::int64_t width) : h(height), w(width) {}
};

struct Conv2dOptions {
  Pair stride = 1;
  Pair padding = 0;
  Pair dilation = 1;
  std::int64_t groups = 1;
};

// Cross-correlation: x [N, C, H, W], weight [O, C / groups, kH, kW], bias [O] or undefined
// -> [N, O, oH, oW] with oH = (H + 2 padding - dilation (kH - 1) - 1) / stride + 1, rounded down.
Tensor conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias = {},
              const Conv2dOptions& options = {});

struct Pool2dOptions {
  Pair kernel = 2;
  Pair stride = 0;  // 0: the kernel's size
  Pair padding = 0;
};

// x [N, C, H, W]. Padding is at most half the kernel. max: the gradient goes to the first largest
// element of a window; padded places never win. avg: padded places count as zeros.
Tensor max_pool2d(const Tensor& x, const Pool2dOptions& options = {});
Tensor avg_pool2d(const Tensor& x, const Pool2dOptions& options = {});

}  // namespace cohort
