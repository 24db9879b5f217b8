#pragma once

#include <cstdint>
#include <vector>

#include "cohort/core/random.h"
#include "cohort/core/tensor.h"

namespace cohort {

// Fills in place (no derivative) with uniform numbers in [low, high) or normal ones (Box-Muller),
// element by element from `generator` (core/random.h), so that the values do not depend on the
// device or on how the work is split.
Tensor& uniform_(Tensor& a, double low, double high, Generator& generator);
Tensor& normal_(Tensor& a, double mean, double deviation, Generator& generator);
// A pseudo-random permutation of 0, …, count - 1.
std::vector<std::int64_t> random_permutation(std::int64_t count, Generator& generator);

}  // namespace cohort
