#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// True when a GEMM reads the last two dimensions in place: one of them has stride 1, the other's is
// at least that one's size.
bool is_gemm_operand(const View& view);

// Matrix products. Operands have one floating dtype; bf16 and f16 accumulate in f32, round once.
class MatmulKernels {
 public:
  virtual ~MatmulKernels() = default;

  // out [.., m, n] = a [.., m, k] b [.., k, n], plus out when `accumulate`. Leading dimensions are
  // equal (stride 0 where repeated); a and b are GEMM operands; out's rows have stride 1.
  virtual void matmul(const Stream& stream, const View& out, const View& a, const View& b,
                      bool accumulate) const = 0;
  // out [rows, n] = x [rows, k] weight [n, k]^T + bias [n]; a bias without data is left out.
  virtual void linear(const Stream& stream, const View& out, const View& x, const View& weight,
                      const View& bias) const = 0;
  // out [n] = the sum of the rows of a [rows, n] (rows contiguous), plus out when `accumulate`.
  virtual void sum_rows(const Stream& stream, const View& out, const View& a,
                        bool accumulate) const = 0;
};

}  // namespace cohort::backend
