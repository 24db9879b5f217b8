#pragma once

#include "backend/grad_view.h"
#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

struct CrossEntropySpec {
  enum class Reduce { none, mean, sum };
  std::int64_t ignore_index = -100;
  double smoothing = 0;
  Reduce reduce = Reduce::mean;
};

// Operations that look rows up. Indices are i64 or i32; all views are contiguous. One that is out
// of range raises InvalidArgument naming its position and value: where the kernel runs, so at the
// call on an inline stream, at the next synchronisation on a queued one.
class IndexKernels {
 public:
  virtual ~IndexKernels() = default;

  // out [count, width] = weight [rows, width] at indices [count].
  virtual void embedding(const Stream& stream, const View& out, const View& indices,
                         const View& weight) const = 0;
  // Adds grad_out's rows in order of position; without `accumulate` the rest becomes zero.
  virtual void embedding_backward(const Stream& stream, const GradView& grad_weight,
                                  const View& indices, const View& grad_out) const = 0;

  // logits [rows, classes], targets [rows]; out is [rows] or a scalar. Leaves the logarithm of each
  // row's sum of exponentials in `lse` [rows] and the number of rows that count in `count` (a
  // scalar of lse's dtype: f32, or f64 for f64).
  virtual void cross_entropy(const Stream& stream, const View& out, const View& lse,
                             const View& count, const View& logits, const View& targets,
                             const CrossEntropySpec& spec) const = 0;
  virtual void cross_entropy_backward(const Stream& stream, const View& grad_logits,
                                      const View& grad_out, const View& logits, const View& targets,
                                      const View& lse, const View& count,
                                      const CrossEntropySpec& spec) const = 0;
};

}  // namespace cohort::backend
