#pragma once

#include <vector>

#include "cohort/core/tensor.h"

// Reductions over dimensions. An empty list means all of them. Sums are accumulated in f32 (f64
// for f64, i64 for integers) in a fixed order that depends on the shape alone.
namespace cohort {

Tensor sum(const Tensor& a, const std::vector<int>& dims = {}, bool keep_dim = false);
Tensor mean(const Tensor& a, const std::vector<int>& dims = {}, bool keep_dim = false);
// Largest element over one dimension, or over all; the gradient goes to the first largest.
Tensor max(const Tensor& a);
Tensor max(const Tensor& a, int dim, bool keep_dim = false);
// Index (i64) of the first largest element along `dim`. No derivative.
Tensor argmax(const Tensor& a, int dim, bool keep_dim = false);
// sqrt of the sum of squares of all elements, as f32 (f64 for f64). No derivative. The squares are
// summed exactly, so that the result does not depend on the order of the elements.
Tensor l2_norm(const Tensor& a);
// Sums `a` over the dimensions along which `shape` was broadcast to it.
Tensor sum_to(const Tensor& a, const Shape& shape);

// Norms over several tensors, or over tensors that are cut up among ranks, without a rounding error
// that depends on the cuts. exact_square_sum gives the sum of squares of all elements of floating
// tensors as a fixed-point number: an i64 tensor of kExactSumSize limbs. Such tensors may be added
// element by element (an i64 all-reduce does), up to 2^30 of them, in any order. exact_sum_root is
// the square root as a tensor of rank 0 and `dtype`, f32 or f64. On the device of the tensors (the
// CPU for none). No derivatives.
inline constexpr int kExactSumSize = 136;
Tensor exact_square_sum(const std::vector<Tensor>& tensors);
Tensor exact_sum_root(const Tensor& limbs, DType dtype = DType::f32);

}  // namespace cohort
