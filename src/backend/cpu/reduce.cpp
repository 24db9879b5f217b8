#include <algorithm>
#include <cmath>
#include <cstring>

#include "backend/cpu/elementwise_convert.h"
#include "backend/cpu/families.h"
#include "backend/cpu/reduce_exact.h"
#include "backend/cpu/reduce_sum.h"
#include "backend/elementwise_loops.h"
#include "backend/reduce_kernels.h"

namespace cohort::backend::cpu {
namespace {

// A contiguous tensor as [outer, size, inner] around one of its dimensions.
struct Around {
  std::int64_t outer = 1;
  std::int64_t size = 1;
  std::int64_t inner = 1;

  Around(const Shape& shape, int dim) : size(shape[dim]) {
    for (int i = 0; i < dim; ++i) outer *= shape[i];
    for (int i = dim + 1; i < shape.size(); ++i) inner *= shape[i];
  }
};

// Elements compared at a time.
constexpr std::int64_t kColumns = 256;

// NaN is larger than everything, and of equals the first one wins.
template <typename T>
bool beats(T challenger, T best) {
  if constexpr (std::is_floating_point_v<T>) {
    return challenger > best || (std::isnan(challenger) && !std::isnan(best));
  } else {
    return challenger > best;
  }
}

template <typename T>
void argmax_columns(const View& indices, const View& in, const Around& around) {
  const auto item = static_cast<std::int64_t>(item_size(in.dtype));
  alignas(64) T buffer[kColumns];
  alignas(64) T best[kColumns];
  for (std::int64_t o = 0; o < around.outer; ++o) {
    for (std::int64_t c = 0; c < around.inner; c += kColumns) {
      const std::int64_t count = std::min(kColumns, around.inner - c);
      std::int64_t* index = indices.as<std::int64_t>() + o * around.inner + c;
      for (std::int64_t i = 0; i < around.size; ++i) {
        const std::int64_t at = (o * around.size + i) * around.inner + c;
        load(buffer, in.as<std::byte>() + at * item, in.dtype, static_cast<std::size_t>(count));
        for (std::int64_t j = 0; j < count; ++j) {
          const bool wins = i == 0 || beats(buffer[j], best[j]);
          best[j] = wins ? buffer[j] : best[j];
          index[j] = wins ? i : index[j];
        }
      }
    }
  }
}

template <typename T>
void argmax_rows(const View& indices, const View& in, const Around& around) {
  const auto item = static_cast<std::int64_t>(item_size(in.dtype));
  alignas(64) T buffer[kColumns];
  for (std::int64_t o = 0; o < around.outer; ++o) {
    T best{};
    std::int64_t index = 0;
    for (std::int64_t i = 0; i < around.size; i += kColumns) {
      const std::int64_t count = std::min(kColumns, around.size - i);
      const std::byte* from = in.as<std::byte>() + (o * around.size + i) * item;
      load(buffer, from, in.dtype, static_cast<std::size_t>(count));
      if (i == 0) best = buffer[0];
      for (std::int64_t j = 0; j < count; ++j) {
        if (!beats(buffer[j], best)) continue;
        best = buffer[j];
        index = i + j;
      }
    }
    indices.as<std::int64_t>()[o] = index;
  }
}

// fn(position in the whole tensor, position in the reduced one) for every chosen element.
template <typename F>
void for_each_chosen(const View& indices, const Around& around, F&& fn) {
  const auto* index = indices.as<const std::int64_t>();
  for (std::int64_t o = 0; o < around.outer; ++o) {
    for (std::int64_t j = 0; j < around.inner; ++j, ++index) {
      fn((o * around.size + *index) * around.inner + j, o * around.inner + j);
    }
  }
}

void max_now(const View& out, const View& indices, const View& in, int dim) {
  const Around around(in.shape, dim);
  dispatch_compute(compute_dtype(in.dtype, in.dtype), [&](auto zero) {
    using T = decltype(zero);
    if (around.inner == 1) {
      argmax_rows<T>(indices, in, around);
    } else {
      argmax_columns<T>(indices, in, around);
    }
  });
  if (out.data == nullptr) return;
  const auto item = item_size(in.dtype);
  for_each_chosen(indices, around, [&](std::int64_t whole, std::int64_t reduced) {
    std::memcpy(out.as<std::byte>() + reduced * static_cast<std::int64_t>(item),
                in.as<std::byte>() + whole * static_cast<std::int64_t>(item), item);
  });
}

void max_grad_now(const View& out, const View& grad, const View& indices, int dim) {
  const auto item = item_size(out.dtype);
  std::memset(out.data, 0, static_cast<std::size_t>(out.numel) * item);
  for_each_chosen(indices, Around(out.shape, dim), [&](std::int64_t whole, std::int64_t reduced) {
    std::memcpy(out.as<std::byte>() + whole * static_cast<std::int64_t>(item),
                grad.as<std::byte>() + reduced * static_cast<std::int64_t>(item), item);
  });
}

class CpuReduce final : public ReduceKernels {
 public:
  void sum(const Stream& stream, const View& out, const View& in, bool accumulate,
           double divisor) const override {
    stream.launch([=] { sum_now(out, in, accumulate, divisor); });
  }
  void max(const Stream& stream, const View& out, const View& indices, const View& in,
           int dim) const override {
    stream.launch([=] { max_now(out, indices, in, dim); });
  }
  void max_grad(const Stream& stream, const View& out, const View& grad, const View& indices,
                int dim) const override {
    stream.launch([=] { max_grad_now(out, grad, indices, dim); });
  }
  void add_squares(const Stream& stream, const View& limbs, const View& in) const override {
    stream.launch([=] { add_squares_now(limbs, in); });
  }
  void root_of_sum(const Stream& stream, const View& out, const View& limbs) const override {
    stream.launch([=] {
      const double root = root_of_limbs(limbs.as<const std::int64_t>());
      store(out.data, out.dtype, &root, 1);
    });
  }
};

}  // namespace

const ReduceKernels& reduce_kernels() {
  static const CpuReduce instance;
  return instance;
}

}  // namespace cohort::backend::cpu
