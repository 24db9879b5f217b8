#pragma once

#include <memory>
#include <string>

#include "cohort/comm/store.h"
#include "comm/shm/link.h"

namespace cohort::comm::shm {

// Connects this rank with all others of `size`, which call it at the same time with the same store.
// Who shares this host is found out by trying: every rank publishes the random name of a local
// socket, and those who can reach it and know its nonce do. NotSupported on all ranks, naming who
// cannot reach whom, when not all share the host; TimeoutError, naming a rank, when one does not
// come.
std::shared_ptr<Link> connect_processes(Store& store, int rank, int size, Milliseconds timeout);

}  // namespace cohort::comm::shm
