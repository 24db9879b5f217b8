#pragma once

#include <cstddef>

namespace cohort::comm::shm {

// Bytes that can still be allocated: what the kernel says is available, or what is left of the
// memory limit of this process's control groups (version 2) if that is less.
std::size_t memory_left();

}  // namespace cohort::comm::shm
