#pragma once

#include <memory>

#include "comm/shm/link.h"

namespace cohort::comm::shm {

// Where ranks that are threads of one process leave segments for each other.
class Hub;
std::shared_ptr<Hub> make_hub();

// The link of rank `rank` of `size` threads. All map a segment once, together.
std::shared_ptr<Link> make_thread_link(std::shared_ptr<Hub> hub, int rank, int size);

}  // namespace cohort::comm::shm
