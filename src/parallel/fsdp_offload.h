#pragma once

#include <cstdint>

#include "cohort/core/device.h"
#include "cohort/core/memory.h"
#include "cohort/core/tensor.h"

namespace cohort::parallel {

// `elements` in a row of host memory for what FSDP offloads, uninitialised. It comes from an arena
// of the rank's own, with counters of its own (offloaded_memory_stats()), so that it is told apart
// from the memory of the device that computes even where that is the CPU. For what computes on the
// meta device it is there too, and counted nowhere.
Tensor host_row(std::int64_t elements, DType dtype, MemoryCategory category, Device computes);

}  // namespace cohort::parallel
