#pragma once

#include <functional>
#include <memory>

#include "cohort/comm/local_world.h"
#include "comm/transport.h"

namespace cohort::comm {

// LocalWorld's run() over any transport: `make_transport(rank)` is called on each rank's thread,
// inside its context.
void run_thread_ranks(int size, const LocalWorldOptions& options,
                      const std::function<std::unique_ptr<Transport>(int rank)>& make_transport,
                      const std::function<void(const std::shared_ptr<ProcessGroup>&)>& fn);

}  // namespace cohort::comm
