#pragma once

#include <sys/types.h>

#include <functional>

#include "cohort/core/deadline.h"

namespace cohort::tools {

// Kills children of this process until none is left, calling `reaped` with pid and waitpid status
// of each that ends. This process must be a subreaper (or process 1): when a child dies, its
// children become ours and are next, so that every depth is reached, and a pid is never signalled
// after it may have been given to another. False when the deadline passed first.
bool kill_descendants(Deadline deadline, const std::function<void(pid_t, int)>& reaped);

// Whether a process is on its way out, or a zombie: it may have closed its files already.
bool is_ending(pid_t pid);

// Reaps children that have ended, without waiting. True while there are children left.
bool reap(const std::function<void(pid_t, int)>& reaped);

}  // namespace cohort::tools
