#pragma once

#include "backend/grad_view.h"
#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// What batch_norm moves and reads besides its input; views without data are absent.
struct RunningStats {
  View mean, var;
  double momentum = 0;
};

// Softmax and normalisations. All views are contiguous; statistics are f32 (f64 for f64). Views
// without data are absent: parameters not given, a grad_x not wanted.
class NormKernels {
 public:
  virtual ~NormKernels() = default;

  // Along the middle dimension of [outer, n, inner]; `log` for log-softmax. `backward` reads the
  // forward's output.
  virtual void softmax(const Stream& stream, const View& out, const View& in, bool log) const = 0;
  virtual void softmax_backward(const Stream& stream, const View& grad_in, const View& grad_out,
                                const View& out, bool log) const = 0;

  // x [N, C, S] per channel. With `batch_stats` mean and rstd [C] are computed from x and the
  // running ones move, else they are filled from the running ones. weight, bias are [C].
  virtual void batch_norm(const Stream& stream, const View& out, const View& mean, const View& rstd,
                          const View& x, const View& weight, const View& bias,
                          const RunningStats& running, bool batch_stats, double eps) const = 0;
  virtual void batch_norm_backward(const Stream& stream, const View& grad_x,
                                   const GradView& grad_weight, const GradView& grad_bias,
                                   const View& grad_out, const View& x, const View& weight,
                                   const View& mean, const View& rstd, bool batch_stats) const = 0;

  // batch_norm's training in steps, for a batch of which x is a part. `moments` is f64 [1 + 2C]:
  // the number of values per channel, their means and their sums of squared deviations from it;
  // zeros for an empty x.
  virtual void batch_norm_moments(const Stream& stream, const View& moments,
                                  const View& x) const = 0;
  // `sums` is f64 [2, C]: of grad_out and of grad_out * (x - mean), over this part. The gradients
  // of weight and bias are this part's too.
  virtual void batch_norm_backward_sums(const Stream& stream, const View& sums,
                                        const GradView& grad_weight, const GradView& grad_bias,
                                        const View& grad_out, const View& x, const View& mean,
                                        const View& rstd) const = 0;
  // Given those sums over all parts, which have `count` values per channel.
  virtual void batch_norm_backward_input(const Stream& stream, const View& grad_x,
                                         const View& grad_out, const View& x, const View& weight,
                                         const View& mean, const View& rstd, const View& sums,
                                         double count) const = 0;

  // x [rows, width] per row; mean, rstd are [rows]; weight, bias [width].
  virtual void layer_norm(const Stream& stream, const View& out, const View& mean, const View& rstd,
                          const View& x, const View& weight, const View& bias,
                          double eps) const = 0;
  virtual void layer_norm_backward(const Stream& stream, const View& grad_x,
                                   const GradView& grad_weight, const GradView& grad_bias,
                                   const View& grad_out, const View& x, const View& weight,
                                   const View& mean, const View& rstd) const = 0;
};

}  // namespace cohort::backend
