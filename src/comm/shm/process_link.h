#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/store.h"
#include "comm/shm/link.h"

namespace cohort::comm::shm {

// Which ranks share a host, and what connects this one with those of its own.
struct Hosts {
  std::vector<int> host_of;    // by rank: the lowest rank of its host
  std::shared_ptr<Link> link;  // among the ranks of this host, in order; null when alone
  bool one() const;            // all ranks share one host
};

// Finds this rank's place among `size` ranks, which call it at the same time with the same store.
// Who shares this host is found out by trying: every rank publishes the random name of a local
// socket, and those who can reach it and know its nonce do. NotSupported on all ranks when the
// hosts do not come apart cleanly; TimeoutError, naming a rank, when one does not come.
Hosts find_hosts(Store& store, int rank, int size, Milliseconds timeout);

// The same for ranks that must share one host: NotSupported on all, naming who cannot reach whom,
// when they do not.
std::shared_ptr<Link> connect_processes(Store& store, int rank, int size, Milliseconds timeout);

}  // namespace cohort::comm::shm
