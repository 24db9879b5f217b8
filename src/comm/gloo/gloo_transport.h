#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/store.h"
#include "comm/shm/link.h"
#include "comm/transport.h"

namespace cohort::comm::gloo {

// NotSupported, saying what was missing, when this build has no Gloo.
void check_gloo_is_built();

struct GlooOptions {
  // This host's own address, which the other ranks can reach.
  std::string address = "127.0.0.1";
  // host_of[r] is any number that names the host of rank r: the sum tree follows from it. Empty:
  // one host.
  std::vector<int> host_of = {};
  // What connects the ranks of this host. Given on all ranks: groups are hierarchical (null on a
  // host's only rank). Otherwise every rank talks to every other through Gloo.
  std::shared_ptr<shm::Link> link = {};
  bool hierarchical = false;
};

// Forms a group of `size` ranks over TCP, through `store`; all call it at the same time. The store
// is needed only until all have met. NotSupported when this build has no Gloo; TimeoutError, naming
// a rank, when not all come in time.
std::unique_ptr<Transport> make_gloo_transport(Store& store, int rank, int size,
                                               const std::string& group, Milliseconds timeout,
                                               const GlooOptions& options);

}  // namespace cohort::comm::gloo
