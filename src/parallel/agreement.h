#pragma once

#include <string>
#include <vector>

#include "cohort/comm/process_group.h"

namespace cohort::parallel {

// Compares `lines`, a description of what this rank is about to do, with the other ranks'.
// Collective, blocks. MismatchError on every rank, naming the first line that differs, a rank that
// differs from rank 0, and what both say. `what` names the thing compared: "[DDP] models".
void require_agreement(comm::ProcessGroup& group, const std::string& what,
                       const std::vector<std::string>& lines);

}  // namespace cohort::parallel
