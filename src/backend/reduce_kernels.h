#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// Reductions of contiguous tensors of any dtype. Sums are computed in f32 (f64 where input or
// output is f64, i64 with wrap-around where both are integral) in an order that depends on the
// input's shape and the reduced dimensions alone.
class ReduceKernels {
 public:
  virtual ~ReduceKernels() = default;

  // out = sum(in) / divisor, plus out when `accumulate`; rounded once to out's dtype. `out` has
  // in's rank, size 1 where it is reduced, and any strides.
  virtual void sum(const Stream& stream, const View& out, const View& in, bool accumulate,
                   double divisor = 1) const = 0;
  // The largest element along `dim`, not empty, and the index (i64) of the first one; NaN is larger
  // than everything. The outputs are contiguous with in's other dimensions; `out`, of in's dtype,
  // may be without data.
  virtual void max(const Stream& stream, const View& out, const View& indices, const View& in,
                   int dim) const = 0;
  // The gradient of max: out = 0 but grad at the indices; all are contiguous, out like max's input.
  virtual void max_grad(const Stream& stream, const View& out, const View& grad,
                        const View& indices, int dim) const = 0;
  // Adds the squares of a floating tensor's elements, without any rounding, to `limbs`: a
  // contiguous i64 tensor of kExactSumSize elements (cohort/ops/reduce.h).
  virtual void add_squares(const Stream& stream, const View& limbs, const View& in) const = 0;
  // out [] = the square root of the number in `limbs`.
  virtual void root_of_sum(const Stream& stream, const View& out, const View& limbs) const = 0;
};

}  // namespace cohort::backend
