#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/comm/process_group.h"

namespace cohort::parallel {

// Compares `lines`, a description of what this rank is about to do, with the other ranks'.
// Collective, blocks. MismatchError on every rank, naming the first line that differs, a rank that
// differs from rank 0, and what both say. `what` names the thing compared: "[DDP] models".
void require_agreement(comm::ProcessGroup& group, const std::string& what,
                       const std::vector<std::string>& lines);

// The first rank that brings a text that is not empty, and that text. Collective, blocks.
std::optional<std::pair<int, std::string>> first_failure(comm::ProcessGroup& group,
                                                         const std::string& text);

// For a step that all ranks take or none: `wrong` is what keeps this rank from it, or empty.
// Collective, blocks. InvalidArgument with this rank's own text; where that is empty and another's
// is not, RemoteError with that one. The group goes on.
void require_all_ready(comm::ProcessGroup& group, const std::string& what,
                       const std::string& wrong);

}  // namespace cohort::parallel
