#include <algorithm>
#include <cstring>
#include <vector>

#include "backend/cpu/column_sum.h"
#include "backend/cpu/families.h"
#include "backend/cpu/gemm.h"
#include "backend/matmul_kernels.h"

namespace cohort::backend::cpu {
namespace {

// The last two dimensions of a view as stored rows.
struct Matrix {
  bool transposed = false;
  std::int64_t ld = 0;
};

Matrix stored_matrix(const View& view) {
  const int rank = view.shape.size();
  const std::int64_t rows = view.shape[rank - 2];
  const std::int64_t columns = view.shape[rank - 1];
  const std::int64_t row_stride = view.strides[rank - 2];
  const std::int64_t column_stride = view.strides[rank - 1];
  // A stride along a single row or column is not used, but a BLAS wants it large enough.
  if ((column_stride == 1 || columns == 1) && (row_stride >= columns || rows == 1)) {
    return {false, rows == 1 ? std::max<std::int64_t>(columns, 1) : row_stride};
  }
  return {true, columns == 1 ? std::max<std::int64_t>(rows, 1) : column_stride};
}

Gemm make_gemm(const View& out, const View& a, const View& b, bool accumulate) {
  const int rank = out.shape.size();
  const Matrix ma = stored_matrix(a);
  const Matrix mb = stored_matrix(b);
  Gemm gemm;
  gemm.m = out.shape[rank - 2];
  gemm.n = out.shape[rank - 1];
  gemm.k = a.shape[rank - 1];
  gemm.transpose_a = ma.transposed;
  gemm.transpose_b = mb.transposed;
  gemm.lda = ma.ld;
  gemm.ldb = mb.ld;
  gemm.ldc = stored_matrix(out).ld;
  gemm.accumulate = accumulate;
  return gemm;
}

// c = op(a) op(b) + bias in every row (null: none), plus c when asked; f32 and f64.
template <typename T>
void multiply(Gemm g, const T* a, const T* b, const T* bias, T* c) {
  if (g.k > 0) return gemm(g, a, b, c, bias);
  // No library need know what an empty sum is.
  g = start_from_bias(g, bias, c);
  for (std::int64_t i = 0; i < g.m && !g.accumulate; ++i) std::fill_n(c + i * g.ldc, g.n, T{0});
}

// `rows` stored rows of `columns` elements as compact floats.
template <typename T>
void widen(const T* from, std::int64_t ld, std::int64_t rows, std::int64_t columns, float* to) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) to[i * columns + j] = from[i * ld + j];
  }
}

// The same for two-byte elements: panels are widened to f32, multiplied, and rounded once.
template <typename T>
void multiply_half(const Gemm& g, const T* a, const T* b, const T* bias, T* c) {
  constexpr std::int64_t kPanelRows = 256;  // bounds the scratch for a and c
  const std::int64_t panel_rows = std::min(kPanelRows, g.m);
  std::vector<float> wide_a(static_cast<std::size_t>(panel_rows * g.k));
  std::vector<float> wide_b(static_cast<std::size_t>(g.n * g.k));
  std::vector<float> wide_c(static_cast<std::size_t>(panel_rows * g.n));
  widen(b, g.ldb, g.transpose_b ? g.n : g.k, g.transpose_b ? g.k : g.n, wide_b.data());
  for (std::int64_t i = 0; i < g.m; i += panel_rows) {
    Gemm panel = g;
    panel.m = std::min(panel_rows, g.m - i);
    panel.accumulate = false;
    if (g.transpose_a) {
      widen(a + i, g.lda, g.k, panel.m, wide_a.data());
      panel.lda = panel.m;
    } else {
      widen(a + i * g.lda, g.lda, panel.m, g.k, wide_a.data());
      panel.lda = std::max<std::int64_t>(g.k, 1);
    }
    panel.ldb = std::max<std::int64_t>(g.transpose_b ? g.k : g.n, 1);
    panel.ldc = g.n;
    multiply<float>(panel, wide_a.data(), wide_b.data(), nullptr, wide_c.data());
    for (std::int64_t r = 0; r < panel.m; ++r) {
      T* row = c + (i + r) * g.ldc;
      const float* sums = wide_c.data() + r * g.n;
      for (std::int64_t j = 0; j < g.n; ++j) {
        float value = sums[j];
        if (bias != nullptr) value += bias[j];
        if (g.accumulate) value += row[j];
        row[j] = value;
      }
    }
  }
}

void multiply(DType dtype, const Gemm& g, const void* a, const void* b, const void* bias, void* c) {
  if (g.m == 0 || g.n == 0) return;
  const auto typed = [&](auto zero, auto run) {
    using T = decltype(zero);
    run(g, static_cast<const T*>(a), static_cast<const T*>(b), static_cast<const T*>(bias),
        static_cast<T*>(c));
  };
  switch (dtype) {
    case DType::f32:
      return typed(float{}, multiply<float>);
    case DType::f64:
      return typed(double{}, multiply<double>);
    case DType::bf16:
      return typed(BFloat16{}, multiply_half<BFloat16>);
    default:
      return typed(Float16{}, multiply_half<Float16>);
  }
}

// Bytes from the first matrix of a batch to the one at `index` of the leading dimensions.
std::int64_t batch_offset(const View& view, std::int64_t index) {
  std::int64_t offset = 0;
  for (int dim = view.shape.size() - 3; dim >= 0; --dim) {
    offset += index % view.shape[dim] * view.strides[dim];
    index /= view.shape[dim];
  }
  return offset * static_cast<std::int64_t>(item_size(view.dtype));
}

class CpuMatmul final : public MatmulKernels {
 public:
  void matmul(const Stream& stream, const View& out, const View& a, const View& b,
              bool accumulate) const override {
    const Gemm g = make_gemm(out, a, b, accumulate);
    stream.launch([=] {
      const std::int64_t count = g.m * g.n == 0 ? 0 : out.numel / (g.m * g.n);
      for (std::int64_t i = 0; i < count; ++i) {
        multiply(out.dtype, g, a.as<std::byte>() + batch_offset(a, i),
                 b.as<std::byte>() + batch_offset(b, i), nullptr,
                 out.as<std::byte>() + batch_offset(out, i));
      }
    });
  }

  void linear(const Stream& stream, const View& out, const View& x, const View& weight,
              const View& bias) const override {
    View transposed = weight;
    std::swap(transposed.shape[0], transposed.shape[1]);
    std::swap(transposed.strides[0], transposed.strides[1]);
    const Gemm g = make_gemm(out, x, transposed, false);
    stream.launch([=] { multiply(out.dtype, g, x.data, weight.data, bias.data, out.data); });
  }

  void sum_rows(const Stream& stream, const View& out, const View& a,
                bool accumulate) const override {
    stream.launch([=] {
      column_sum(a.dtype, a.data, a.shape[0], a.shape[1], a.strides[0], out.data, accumulate);
    });
  }
};

}  // namespace

const MatmulKernels& matmul_kernels() {
  static const CpuMatmul instance;
  return instance;
}

}  // namespace cohort::backend::cpu
