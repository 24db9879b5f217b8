#pragma once

// The additions of sums, vectorised. Their order is that of 64 interleaved partial sums whatever
// the width of the machine's vectors.

#include <cstddef>
#include <cstdint>

namespace cohort::backend::cpu {

// The sum of `count` elements side by side: element i goes to partial sum i % 64, the partial sums
// are added in halves.
float add_up(const float* from, std::size_t count);
double add_up(const double* from, std::size_t count);
std::int64_t add_up(const std::int64_t* from, std::size_t count);

// to[i] += rows[0][i], then rows[1][i], …, for i < count; `row_count` is at most 4.
void add_rows(float* to, const float* const* rows, int row_count, std::size_t count);
void add_rows(double* to, const double* const* rows, int row_count, std::size_t count);
void add_rows(std::int64_t* to, const std::int64_t* const* rows, int row_count, std::size_t count);

}  // namespace cohort::backend::cpu
