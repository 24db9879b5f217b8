#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

#include "backend/cpu/floating.h"
#include "backend/cpu/index.h"
#include "cohort/core/error.h"

namespace cohort::backend::cpu {
namespace {

// Adds up the rows of grad_out that went to one row of the weight, and stores the sum once.
template <typename T>
void add_rows(const GradView& grad, const std::vector<std::pair<std::int64_t, std::int64_t>>& uses,
              const T* grad_out, std::int64_t width) {
  using C = std::conditional_t<std::is_same_v<T, double>, double, float>;
  std::vector<C> sum(static_cast<std::size_t>(width));
  for (std::size_t first = 0; first < uses.size();) {
    const std::int64_t row = uses[first].first;
    std::fill(sum.begin(), sum.end(), C{0});
    for (; first < uses.size() && uses[first].first == row; ++first) {
      const T* from = grad_out + uses[first].second * width;
      for (std::int64_t i = 0; i < width; ++i) {
        sum[static_cast<std::size_t>(i)] += static_cast<C>(from[i]);
      }
    }
    T* to = grad.view.as<T>() + row * width;
    for (std::int64_t i = 0; i < width; ++i) {
      const C value = sum[static_cast<std::size_t>(i)];
      to[i] = static_cast<T>(grad.accumulate ? static_cast<C>(to[i]) + value : value);
    }
  }
}

}  // namespace

void embedding(const View& out, const View& indices, const View& weight) {
  const std::int64_t rows = weight.shape[0];
  const auto bytes = static_cast<std::size_t>(weight.shape[1]) * item_size(weight.dtype);
  for (std::int64_t i = 0; i < indices.numel; ++i) {
    const std::int64_t row = index_at(indices, i);
    check(row >= 0 && row < rows, "[embedding] index ", row, " at position ", i, " is outside [0, ",
          rows, ")");
    if (bytes == 0) continue;
    std::memcpy(out.as<std::byte>() + static_cast<std::size_t>(i) * bytes,
                weight.as<const std::byte>() + static_cast<std::size_t>(row) * bytes, bytes);
  }
}

void embedding_backward(const GradView& grad_weight, const View& indices, const View& grad_out) {
  const View& to = grad_weight.view;
  if (to.numel == 0) return;
  if (!grad_weight.accumulate) {
    std::memset(to.data, 0, static_cast<std::size_t>(to.numel) * item_size(to.dtype));
  }
  // (row, position), by row and then by position: the order of each row's sum.
  std::vector<std::pair<std::int64_t, std::int64_t>> uses;
  uses.reserve(static_cast<std::size_t>(indices.numel));
  for (std::int64_t i = 0; i < indices.numel; ++i) uses.emplace_back(index_at(indices, i), i);
  std::sort(uses.begin(), uses.end());
  dispatch_floating(to.dtype, [&](auto zero) {
    using T = decltype(zero);
    add_rows(grad_weight, uses, grad_out.as<const T>(), to.shape[1]);
  });
}

}  // namespace cohort::backend::cpu
