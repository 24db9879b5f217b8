#pragma once

#include <cstdint>

namespace cohort::comm {

// memcpy, of bytes that a peer reads later or this rank only after many others: stores go past the
// caches where the CPU can, which spares reading what is about to be overwritten and leaves the
// caches to computation. Visible to other threads like ordinary stores when it returns.
void stream_copy(void* to, const void* from, std::int64_t bytes);

}  // namespace cohort::comm
