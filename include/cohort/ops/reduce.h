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
// sqrt of the sum of squares of all elements, as f32 (f64 for f64). No derivative.
Tensor l2_norm(const Tensor& a);
// Sums `a` over the dimensions along which `shape` was broadcast to it.
Tensor sum_to(const Tensor& a, const Shape& shape);

}  // namespace cohort
