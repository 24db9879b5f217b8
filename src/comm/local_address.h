#pragma once

#include <string>

#include "cohort/comm/launch_env.h"

namespace cohort::comm {

// The address under which the other hosts reach this one: that of the interface which
// COHORT_SOCKET_IFNAME names, or else of the one from which a packet to `master` would leave.
// InvalidArgument for an interface that is not there or has no address; StoreError for a master
// that does not resolve. `environment` may be empty: the process's own.
std::string local_address(const std::string& master, const LaunchEnv::Environment& environment);

bool is_loopback(const std::string& address);

}  // namespace cohort::comm
