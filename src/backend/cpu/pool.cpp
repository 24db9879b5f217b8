#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "backend/cpu/conv.h"
#include "backend/cpu/floating.h"

namespace cohort::backend::cpu {
namespace {

template <typename T>
using Compute = std::conditional_t<std::is_same_v<T, double>, double, float>;

// A view [N, C, H, W] as N x C planes.
struct Planes {
  explicit Planes(const View& view)
      : count(view.shape[0] * view.shape[1]), height(view.shape[2]), width(view.shape[3]) {}
  std::int64_t area() const { return height * width; }
  std::int64_t count, height, width;
};

// The part [begin, end) of a window that lies inside the plane, along one dimension.
struct Span {
  Span(std::int64_t output, std::int64_t stride, std::int64_t pad, std::int64_t kernel,
       std::int64_t size)
      : begin(std::max<std::int64_t>(output * stride - pad, 0)),
        end(std::min(output * stride - pad + kernel, size)) {}
  std::int64_t begin, end;
};

// run(output, rows, columns) for each output position of a plane.
template <typename F>
void for_windows(const Planes& out, const Planes& in, const WindowSpec& w, F&& run) {
  for (std::int64_t i = 0; i < out.height; ++i) {
    const Span rows(i, w.stride_h, w.pad_h, w.kernel_h, in.height);
    for (std::int64_t j = 0; j < out.width; ++j) {
      run(i * out.width + j, rows, Span(j, w.stride_w, w.pad_w, w.kernel_w, in.width));
    }
  }
}

template <typename T>
void max_planes(const View& out, const View& indices, const View& x, const WindowSpec& spec) {
  const Planes from(x);
  const Planes to(out);
  for (std::int64_t p = 0; p < to.count; ++p) {
    const T* plane = x.as<const T>() + p * from.area();
    T* values = out.as<T>() + p * to.area();
    std::int32_t* places = indices.as<std::int32_t>() + p * to.area();
    for_windows(to, from, spec, [&](std::int64_t at, Span rows, Span columns) {
      std::int64_t best = rows.begin * from.width + columns.begin;
      for (std::int64_t i = rows.begin; i < rows.end; ++i) {
        for (std::int64_t j = columns.begin; j < columns.end; ++j) {
          const std::int64_t place = i * from.width + j;
          const Compute<T> value = static_cast<Compute<T>>(plane[place]);
          // The first of equals wins, and a NaN wins over all.
          if (value > static_cast<Compute<T>>(plane[best]) || std::isnan(value)) best = place;
        }
      }
      values[at] = plane[best];
      places[at] = static_cast<std::int32_t>(best);
    });
  }
}

// A plane of sums in the type they are computed in, written back rounded once.
template <typename T, typename F>
void scatter_planes(const View& grad_x, F&& add) {
  const Planes to(grad_x);
  std::vector<Compute<T>> sums(static_cast<std::size_t>(to.area()));
  for (std::int64_t p = 0; p < to.count; ++p) {
    std::fill(sums.begin(), sums.end(), Compute<T>{0});
    add(p, sums.data());
    T* plane = grad_x.as<T>() + p * to.area();
    for (std::size_t i = 0; i < sums.size(); ++i) plane[i] = static_cast<T>(sums[i]);
  }
}

}  // namespace

void max_pool2d(const View& out, const View& indices, const View& x, const WindowSpec& spec) {
  dispatch_floating(out.dtype,
                    [&](auto zero) { max_planes<decltype(zero)>(out, indices, x, spec); });
}

void max_pool2d_backward(const View& grad_x, const View& grad_out, const View& indices) {
  const std::int64_t area = Planes(grad_out).area();
  dispatch_floating(grad_x.dtype, [&](auto zero) {
    using T = decltype(zero);
    scatter_planes<T>(grad_x, [&](std::int64_t p, Compute<T>* sums) {
      const T* grad = grad_out.as<const T>() + p * area;
      const std::int32_t* places = indices.as<const std::int32_t>() + p * area;
      for (std::int64_t i = 0; i < area; ++i) sums[places[i]] += static_cast<Compute<T>>(grad[i]);
    });
  });
}

void avg_pool2d(const View& out, const View& x, const WindowSpec& spec) {
  const Planes from(x);
  const Planes to(out);
  dispatch_floating(out.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const C area = static_cast<C>(spec.kernel_h * spec.kernel_w);
    for (std::int64_t p = 0; p < to.count; ++p) {
      const T* plane = x.as<const T>() + p * from.area();
      T* values = out.as<T>() + p * to.area();
      for_windows(to, from, spec, [&](std::int64_t at, Span rows, Span columns) {
        C sum = 0;
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
          for (std::int64_t j = columns.begin; j < columns.end; ++j) {
            sum += static_cast<C>(plane[i * from.width + j]);
          }
        }
        values[at] = static_cast<T>(sum / area);
      });
    }
  });
}

void avg_pool2d_backward(const View& grad_x, const View& grad_out, const WindowSpec& spec) {
  const Planes from(grad_out);
  const Planes to(grad_x);
  dispatch_floating(grad_x.dtype, [&](auto zero) {
    using T = decltype(zero);
    using C = Compute<T>;
    const C area = static_cast<C>(spec.kernel_h * spec.kernel_w);
    scatter_planes<T>(grad_x, [&](std::int64_t p, C* sums) {
      const T* grad = grad_out.as<const T>() + p * from.area();
      for_windows(from, to, spec, [&](std::int64_t at, Span rows, Span columns) {
        const C share = static_cast<C>(grad[at]) / area;
        for (std::int64_t i = rows.begin; i < rows.end; ++i) {
          for (std::int64_t j = columns.begin; j < columns.end; ++j) {
            sums[i * to.width + j] += share;
          }
        }
      });
    });
  });
}

}  // namespace cohort::backend::cpu
