#pragma once

#include <memory>

#include "cohort/comm/launch_env.h"
#include "cohort/comm/store.h"

namespace cohort::comm {

// The job's store for this rank: a client of the store that the launcher hosts, or of the one that
// rank 0 hosts (rank 0 then owns the server); in a world of one, a MemoryStore. Waits up to
// `timeout` for the server. Throws what TcpStore throws.
std::shared_ptr<Store> open_store(const LaunchEnv& env, Milliseconds timeout);

// Returns on every rank once all `world_size` ranks have joined under `name`. Each rank calls it
// once per store and name; it costs each three round trips. Throws InvalidArgument for a rank
// outside the world; MismatchError, on all ranks that wait and with one text, when two processes
// claim one rank or name different world sizes; TimeoutError, saying who joined and who is missing,
// when `timeout` passes first.
void join(Store& store, const std::string& name, int rank, int world_size, Milliseconds timeout);

}  // namespace cohort::comm
