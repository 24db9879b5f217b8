#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// Element-wise maps. Operands are already broadcast to the output's shape (stride 0).
class ElementwiseKernels {
 public:
  virtual ~ElementwiseKernels() = default;

  // out[i] = value, converted to out's dtype.
  virtual void fill(const Stream& stream, const View& out, double value) const = 0;
  // out[i] = in[i], converted to out's dtype; any strides.
  virtual void copy(const Stream& stream, const View& out, const View& in) const = 0;
  // out[i] += in[i], computed in f32 (f64 for f64) and rounded once; any strides and dtypes.
  virtual void accumulate(const Stream& stream, const View& out, const View& in) const = 0;
};

}  // namespace cohort::backend
