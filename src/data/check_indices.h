#pragma once

#include <cstdint>
#include <span>

namespace cohort::data {

// InvalidArgument naming position and value of an index outside [0, size).
void check_indices(const char* operation, std::span<const std::int64_t> indices, std::int64_t size);

}  // namespace cohort::data
