#include <algorithm>
#include <type_traits>
#include <vector>

#include "backend/cpu/conv.h"
#include "backend/cpu/floating.h"
#include "backend/cpu/gemm.h"

namespace cohort::backend::cpu {
namespace {

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Sizes of one group of one image: columns [depth, area] hold under each output position the
// window of the input that it sees.
struct Sizes {
  std::int64_t images, groups;
  std::int64_t channels, height, width;  // of the input, channels per group
  std::int64_t filters, out_h, out_w;    // of the output, filters per group
  WindowSpec window;

  Sizes(const View& x, const View& out, const ConvSpec& spec)
      : images(x.shape[0]),
        groups(spec.groups),
        channels(x.shape[1] / spec.groups),
        height(x.shape[2]),
        width(x.shape[3]),
        filters(out.shape[1] / spec.groups),
        out_h(out.shape[2]),
        out_w(out.shape[3]),
        window(spec.window) {}

  std::int64_t depth() const { return channels * window.kernel_h * window.kernel_w; }
  std::int64_t area() const { return out_h * out_w; }
  std::int64_t image_size() const { return channels * height * width; }  // per group
  std::int64_t output_size() const { return filters * area(); }          // per group
  std::int64_t weight_size() const { return filters * depth(); }         // per group
};

// run(column, y, x, channel): the input row that each row of columns begins from; output (i, j)
// sees input (y + i stride, x + j stride).
template <typename F>
void for_taps(const Sizes& s, F&& run) {
  std::int64_t row = 0;
  for (std::int64_t c = 0; c < s.channels; ++c) {
    for (std::int64_t ky = 0; ky < s.window.kernel_h; ++ky) {
      for (std::int64_t kx = 0; kx < s.window.kernel_w; ++kx) {
        run(row++, ky * s.window.dilation_h - s.window.pad_h,
            kx * s.window.dilation_w - s.window.pad_w, c);
      }
    }
  }
}

template <typename T, typename C>
void unfold(const Sizes& s, const T* image, C* columns) {
  for_taps(s, [&](std::int64_t row, std::int64_t y0, std::int64_t x0, std::int64_t c) {
    C* to = columns + row * s.area();
    for (std::int64_t i = 0; i < s.out_h; ++i) {
      const std::int64_t y = y0 + i * s.window.stride_h;
      const bool inside = y >= 0 && y < s.height;
      const T* from = image + (c * s.height + (inside ? y : 0)) * s.width;
      for (std::int64_t j = 0; j < s.out_w; ++j) {
        const std::int64_t x = x0 + j * s.window.stride_w;
        *to++ = inside && x >= 0 && x < s.width ? static_cast<C>(from[x]) : C{0};
      }
    }
  });
}

// Adds each column back to the places it was read from.
template <typename C>
void fold(const Sizes& s, const C* columns, C* image) {
  for_taps(s, [&](std::int64_t row, std::int64_t y0, std::int64_t x0, std::int64_t c) {
    const C* from = columns + row * s.area();
    for (std::int64_t i = 0; i < s.out_h; ++i, from += s.out_w) {
      const std::int64_t y = y0 + i * s.window.stride_h;
      if (y < 0 || y >= s.height) continue;
      C* to = image + (c * s.height + y) * s.width;
      for (std::int64_t j = 0; j < s.out_w; ++j) {
        const std::int64_t x = x0 + j * s.window.stride_w;
        if (x >= 0 && x < s.width) to[x] += from[j];
      }
    }
  });
}

template <typename C>
std::vector<C> buffer(std::int64_t count) {
  return std::vector<C>(static_cast<std::size_t>(count));
}

template <typename T>
std::vector<Compute<T>> widened(const View& view) {
  const T* from = view.as<const T>();
  return std::vector<Compute<T>>(from, from + view.numel);
}

Gemm product(std::int64_t m, std::int64_t n, std::int64_t k) {
  Gemm g;
  g.m = m;
  g.n = n;
  g.k = k;
  g.lda = k;
  g.ldb = g.ldc = n;
  return g;
}

template <typename T>
void forward(const ConvArgs& args) {
  using C = Compute<T>;
  const Sizes s(args.x, args.out, args.spec);
  const auto weight = widened<T>(args.weight);
  auto columns = buffer<C>(s.depth() * s.area());
  auto sums = buffer<C>(s.output_size());
  const T* bias = args.bias.as<const T>();
  for (std::int64_t i = 0; i < s.images * s.groups; ++i) {
    const std::int64_t group = i % s.groups;
    unfold(s, args.x.as<const T>() + i * s.image_size(), columns.data());
    gemm(product(s.filters, s.area(), s.depth()), weight.data() + group * s.weight_size(),
         columns.data(), sums.data());
    T* to = args.out.as<T>() + i * s.output_size();
    for (std::int64_t f = 0; f < s.filters; ++f) {
      const C shift = bias == nullptr ? C{0} : static_cast<C>(bias[group * s.filters + f]);
      for (std::int64_t p = f * s.area(); p < (f + 1) * s.area(); ++p) {
        to[p] = static_cast<T>(sums[static_cast<std::size_t>(p)] + shift);
      }
    }
  }
}

template <typename T>
void backward_data(const ConvArgs& args) {
  using C = Compute<T>;
  const Sizes s(args.grad_x, args.grad_out, args.spec);
  const auto weight = widened<T>(args.weight);
  auto columns = buffer<C>(s.depth() * s.area());
  auto grad = buffer<C>(s.output_size());
  auto image = buffer<C>(s.image_size());
  Gemm g = product(s.depth(), s.area(), s.filters);
  g.transpose_a = true;
  g.lda = s.depth();
  for (std::int64_t i = 0; i < s.images * s.groups; ++i) {
    const T* from = args.grad_out.as<const T>() + i * s.output_size();
    std::copy(from, from + s.output_size(), grad.begin());
    gemm(g, weight.data() + i % s.groups * s.weight_size(), grad.data(), columns.data());
    std::fill(image.begin(), image.end(), C{0});
    fold(s, columns.data(), image.data());
    T* to = args.grad_x.as<T>() + i * s.image_size();
    for (std::size_t p = 0; p < image.size(); ++p) to[p] = static_cast<T>(image[p]);
  }
}

template <typename T, typename C>
void write(const GradView& grad, const std::vector<C>& sums) {
  T* to = grad.view.as<T>();
  for (std::size_t i = 0; i < sums.size(); ++i) {
    to[i] = static_cast<T>(grad.accumulate ? static_cast<C>(to[i]) + sums[i] : sums[i]);
  }
}

template <typename T>
void backward_weight(const ConvArgs& args) {
  using C = Compute<T>;
  const Sizes s(args.x, args.grad_out, args.spec);
  auto columns = buffer<C>(s.depth() * s.area());
  auto grad = buffer<C>(s.output_size());
  auto weights = buffer<C>(s.groups * s.weight_size());
  auto biases = buffer<C>(s.groups * s.filters);
  Gemm g = product(s.filters, s.depth(), s.area());
  g.transpose_b = true;
  g.ldb = s.area();
  g.accumulate = true;
  for (std::int64_t i = 0; i < s.images * s.groups; ++i) {
    const std::int64_t group = i % s.groups;
    const T* from = args.grad_out.as<const T>() + i * s.output_size();
    std::copy(from, from + s.output_size(), grad.begin());
    if (args.grad_weight.wanted) {
      unfold(s, args.x.as<const T>() + i * s.image_size(), columns.data());
      gemm(g, grad.data(), columns.data(), weights.data() + group * s.weight_size());
    }
    for (std::int64_t f = 0; f < s.filters; ++f) {
      C sum = 0;
      for (std::int64_t p = f * s.area(); p < (f + 1) * s.area(); ++p) {
        sum += grad[static_cast<std::size_t>(p)];
      }
      biases[static_cast<std::size_t>(group * s.filters + f)] += sum;
    }
  }
  if (args.grad_weight.wanted) write<T>(args.grad_weight, weights);
  if (args.grad_bias.wanted) write<T>(args.grad_bias, biases);
}

}  // namespace

void conv2d_im2col(const ConvArgs& args) {
  if (args.out.numel == 0) return;
  dispatch_floating(args.out.dtype, [&](auto zero) { forward<decltype(zero)>(args); });
}

void conv2d_backward_data_im2col(const ConvArgs& args) {
  if (args.grad_x.numel == 0) return;
  dispatch_floating(args.grad_x.dtype, [&](auto zero) { backward_data<decltype(zero)>(args); });
}

void conv2d_backward_weight_im2col(const ConvArgs& args) {
  dispatch_floating(args.grad_out.dtype, [&](auto zero) { backward_weight<decltype(zero)>(args); });
}

}  // namespace cohort::backend::cpu
