#pragma once

#include "backend/view.h"
#include "cohort/core/random.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// Pseudo-random numbers. Element i, in row-major order of a contiguous tensor, uses lane i of
// `state` (core/random.h), so that values depend neither on the device nor on how work is split.
class RandomKernels {
 public:
  virtual ~RandomKernels() = default;

  // out[i] = low + u * (high - low), below `high` also after rounding, with u = uniform_from_bits
  // of lane i. Computed in f32, in f64 for f64.
  virtual void uniform(const Stream& stream, const View& out, double low, double high,
                       const PhiloxState& state) const = 0;
  // Box-Muller: elements 2 k and 2 k + 1 are mean + deviation * r * cos(t) and … * sin(t), with
  // r = sqrt(-2 log(1 - u)), t = 2 pi v, where u and v are the uniform numbers of their lanes.
  // Computed in f64 and rounded, so that devices whose logarithms differ give equal floats.
  virtual void normal(const Stream& stream, const View& out, double mean, double deviation,
                      const PhiloxState& state) const = 0;
  // out[i] = in[i] / (1 - p), or 0 where the uniform number of lane i is below p. Equal dtypes,
  // floating and contiguous; out may be in.
  virtual void dropout(const Stream& stream, const View& out, const View& in, double p,
                       const PhiloxState& state) const = 0;
};

}  // namespace cohort::backend
