#pragma once

#include <vector>

#include "cohort/core/tensor.h"

// Views (they share storage with their input, and copy only where said) and joins, with
// derivatives. Dimensions may be negative, counted from the end.
namespace cohort {

// Another shape for the same elements; one size may be -1. Copies when strides do not allow a view.
Tensor reshape(const Tensor& a, const Shape& shape);
// As reshape, but ShapeError instead of a copy.
Tensor view(const Tensor& a, const Shape& shape);
// Merges dimensions first to last into one.
Tensor flatten(const Tensor& a, int first = 0, int last = -1);
Tensor transpose(const Tensor& a, int dim0, int dim1);
Tensor permute(const Tensor& a, const std::vector<int>& dims);
// Repeats dimensions of size 1 with stride 0; -1 keeps a size.
Tensor expand(const Tensor& a, const Shape& shape);
Tensor squeeze(const Tensor& a, int dim);
Tensor unsqueeze(const Tensor& a, int dim);
// Elements [start, start + length) along `dim`.
Tensor narrow(const Tensor& a, int dim, std::int64_t start, std::int64_t length);
// Element `index` along `dim`, which goes away; negative counts from the end.
Tensor select(const Tensor& a, int dim, std::int64_t index);
// Consecutive pieces of `size` along `dim`, the last one may be shorter.
std::vector<Tensor> split(const Tensor& a, std::int64_t size, int dim = 0);
std::vector<Tensor> split(const Tensor& a, const std::vector<std::int64_t>& sizes, int dim = 0);

// Joins along an existing or a new dimension; shapes must agree otherwise, dtypes are promoted.
Tensor cat(const std::vector<Tensor>& tensors, int dim = 0);
Tensor stack(const std::vector<Tensor>& tensors, int dim = 0);

// `a` itself when it is row-major, else a copy.
Tensor contiguous(const Tensor& a);
// A fresh copy.
Tensor clone(const Tensor& a);

}  // namespace cohort
