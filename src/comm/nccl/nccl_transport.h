#pragma once

#include <memory>
#include <string>

#include "cohort/comm/store.h"
#include "comm/transport.h"

namespace cohort::comm::nccl {

// NotSupported, saying what was missing, when this build has no NCCL.
void check_nccl_is_built();

// Forms a group of `size` ranks, each with a GPU, through `store`; all call it at the same time.
// The group keeps the store: through it the ranks learn of each other's failures. Filled:
// all_reduce (not: a scale with max, min or product), broadcast, barrier; everything else throws
// NotSupported. NotSupported also when this build has no NCCL, or the machine no such GPU;
// TimeoutError when not all ranks came in time.
std::unique_ptr<Transport> make_nccl_transport(std::shared_ptr<Store> store, Device device,
                                               int rank, int size, const std::string& group,
                                               Milliseconds timeout);

}  // namespace cohort::comm::nccl
