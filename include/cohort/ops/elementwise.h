#pragma once

#include "cohort/core/tensor.h"

// Element-wise operations with derivatives. Two tensors are broadcast against each other; dtypes
// are promoted (core/dtype.h). A scalar takes the tensor's dtype (an integral or bool tensor with a
// fractional scalar gives f32). Results are fresh contiguous tensors.
namespace cohort {

Tensor add(const Tensor& a, const Tensor& b);
Tensor sub(const Tensor& a, const Tensor& b);
Tensor mul(const Tensor& a, const Tensor& b);
Tensor div(const Tensor& a, const Tensor& b);  // of integral tensors: f32
Tensor add(const Tensor& a, double b);
Tensor sub(const Tensor& a, double b);
Tensor mul(const Tensor& a, double b);
Tensor div(const Tensor& a, double b);
// Larger or smaller of the two; where they are equal the gradient is split in halves.
Tensor maximum(const Tensor& a, const Tensor& b);
Tensor minimum(const Tensor& a, const Tensor& b);
Tensor pow(const Tensor& a, double exponent);
Tensor neg(const Tensor& a);
Tensor exp(const Tensor& a);
Tensor log(const Tensor& a);
Tensor sqrt(const Tensor& a);
Tensor abs(const Tensor& a);  // gradient 0 at 0
Tensor sin(const Tensor& a);
Tensor cos(const Tensor& a);
// Values outside [low, high] are set to the nearer bound and pass no gradient.
Tensor clamp(const Tensor& a, double low, double high);
// `condition` (bool) ? a : b, all three broadcast.
Tensor where(const Tensor& condition, const Tensor& a, const Tensor& b);

Tensor relu(const Tensor& a);  // gradient 0 at 0
enum class GeluApproximate { none, tanh };
// x * Phi(x), exactly (erf) or by the tanh formula (Hendrycks and Gimpel, 2016).
Tensor gelu(const Tensor& a, GeluApproximate approximate = GeluApproximate::none);
Tensor silu(const Tensor& a);
Tensor tanh(const Tensor& a);
Tensor sigmoid(const Tensor& a);

// Comparisons give bool tensors and have no derivative.
Tensor equal(const Tensor& a, const Tensor& b);
Tensor not_equal(const Tensor& a, const Tensor& b);
Tensor less(const Tensor& a, const Tensor& b);
Tensor less_equal(const Tensor& a, const Tensor& b);
Tensor greater(const Tensor& a, const Tensor& b);
Tensor greater_equal(const Tensor& a, const Tensor& b);
// True where finite.
Tensor isfinite(const Tensor& a);

// In place, without derivative (AutogradError on a tensor that takes part in a graph while grad
// mode is on): a += alpha * b (b broadcast), a *= b, a *= scalar.
Tensor& add_(Tensor& a, const Tensor& b, double alpha = 1);
Tensor& mul_(Tensor& a, const Tensor& b);
Tensor& mul_(Tensor& a, double b);
Tensor& clamp_(Tensor& a, double low, double high);

inline Tensor operator+(const Tensor& a, const Tensor& b) {
  return add(a, b);
}
inline Tensor operator-(const Tensor& a, const Tensor& b) {
  return sub(a, b);
}
inline Tensor operator*(const Tensor& a, const Tensor& b) {
  return mul(a, b);
}
inline Tensor operator/(const Tensor& a, const Tensor& b) {
  return div(a, b);
}
inline Tensor operator+(const Tensor& a, double b) {
  return add(a, b);
}
inline Tensor operator-(const Tensor& a, double b) {
  return sub(a, b);
}
inline Tensor operator*(const Tensor& a, double b) {
  return mul(a, b);
}
inline Tensor operator/(const Tensor& a, double b) {
  return div(a, b);
}
inline Tensor operator+(double a, const Tensor& b) {
  return add(b, a);
}
inline Tensor operator*(double a, const Tensor& b) {
  return mul(b, a);
}
inline Tensor operator-(double a, const Tensor& b) {
  return add(neg(b), a);
}
inline Tensor operator/(double a, const Tensor& b) {
  return mul(pow(b, -1), a);
}
inline Tensor operator-(const Tensor& a) {
  return neg(a);
}

}  // namespace cohort
