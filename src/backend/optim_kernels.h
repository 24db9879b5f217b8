#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

// Every gradient g is first multiplied by `grad_scale` (clipping by norm), then negated when the
// objective is maximised.
struct SgdParams {
  double lr = 0;
  double momentum = 0;
  double dampening = 0;
  double weight_decay = 0;
  bool nesterov = false;
  bool maximize = false;
  bool first_step = false;  // the momentum buffer is set to g instead of being updated
  double grad_scale = 1;
};

struct AdamParams {
  double lr = 0;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  double bias_correction1 = 1;  // 1 - beta1^step
  double bias_correction2 = 1;  // 1 - beta2^step
  bool decoupled = false;       // AdamW: the decay shrinks the parameter instead of joining g
  bool maximize = false;
  double grad_scale = 1;
};

// One optimizer step, in one pass over memory. All operands are contiguous with equal numbers of
// elements and floating; each element is updated by its own values alone. The arithmetic is in f64
// for f64 parameters, else in f32, and every operand is rounded once to its own dtype.
class OptimKernels {
 public:
  virtual ~OptimKernels() = default;

  // g += weight_decay * p; b = momentum * b + (1 - dampening) * g; g = b, or g + momentum * b with
  // Nesterov; p -= lr * g. Without momentum `buffer` has no data. (PyTorch's SGD.)
  virtual void sgd(const Stream& stream, const View& param, const View& grad, const View& buffer,
                   const SgdParams& params) const = 0;
  // g += weight_decay * p, or p *= 1 - lr * weight_decay where decoupled; m = beta1 m + (1 - beta1)
  // g; v = beta2 v + (1 - beta2) g^2; p -= lr / bias_correction1 * m / (sqrt(v / bias_correction2)
  // + eps) with v's running maximum instead where `max_v` has data (AMSGrad). (PyTorch's Adam and
  // AdamW; Kingma and Ba, 2015; Loshchilov and Hutter, 2019.)
  virtual void adam(const Stream& stream, const View& param, const View& grad, const View& m,
                    const View& v, const View& max_v, const AdamParams& params) const = 0;

  // Sets the one element of `flag`, an i32, to 1 when an element of `grad` is infinite or NaN, and
  // leaves it alone otherwise; grad *= factor, rounded once. A factor of 1 writes nothing.
  // (PyTorch's _amp_foreach_non_finite_check_and_unscale_.)
  virtual void unscale(const Stream& stream, const View& flag, const View& grad,
                       double factor) const = 0;
};

}  // namespace cohort::backend
