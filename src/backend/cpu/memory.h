#pragma once

#include <memory>

#include "cohort/core/memory.h"

namespace cohort::backend {

// Ordinary host memory.
std::unique_ptr<MemorySource> make_host_memory();

}  // namespace cohort::backend
