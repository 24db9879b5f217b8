#pragma once

#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/parallel/join.h"

namespace cohort::parallel {

// Owner of the collective of meet_in_join().
inline constexpr const char* kJoinMeeting = "join: ranks with inputs";

// At the beginning of each step inside join: which ranks still have inputs. Collective.
// InputsExhausted when one has not and `options` want to know.
std::vector<bool> meet_in_join(comm::ProcessGroup& group, const JoinOptions& options);

}  // namespace cohort::parallel
