#include "cohort/parallel/join.h"

#include <algorithm>
#include <string>

#include "cohort/core/error.h"
#include "parallel/agreement.h"
#include "parallel/join_meeting.h"

namespace cohort {
namespace parallel {

std::vector<bool> meet_in_join(comm::ProcessGroup& group, const JoinOptions& options) {
  std::vector<std::int64_t> flags(static_cast<std::size_t>(group.size()), 0);
  flags[static_cast<std::size_t>(group.rank())] = 1;
  const Tensor shared = Tensor::from(flags, {group.size()});
  group.all_reduce(shared, comm::ReduceOp::sum, {.owner = kJoinMeeting}).synchronize();
  flags = shared.to_vector<std::int64_t>();
  const auto gone = std::find(flags.begin(), flags.end(), 0);
  if (options.throw_on_early_termination && gone != flags.end()) {
    throw InputsExhausted(str("[join] at least one rank has exhausted its inputs: rank ",
                              gone - flags.begin(), " (seen on rank ", group.rank(), ")"));
  }
  return {flags.begin(), flags.end()};
}

}  // namespace parallel

namespace {

const std::shared_ptr<comm::ProcessGroup>& common_group(const std::vector<Joinable*>& joinables) {
  check(!joinables.empty(), "[join] there is nothing to join");
  for (const Joinable* joinable : joinables) {
    check(joinable != nullptr, "[join] a joinable is null");
    check(joinable->join_group() == joinables.front()->join_group(),
          "[join] the joinables have more than one process group");
  }
  return joinables.front()->join_group();
}

// A rank that was in the steps to the end: the one that has shadowed least. Collective.
int last_rank(comm::ProcessGroup& group, std::int64_t shadowed) {
  const Tensor key = Tensor::scalar(shadowed * group.size() + group.rank());
  group.all_reduce(key, comm::ReduceOp::min, {.owner = "join: last rank"}).synchronize();
  return static_cast<int>(key.item<std::int64_t>() % group.size());
}

// Between begin_join() and end_join(): undone when it is left by an exception.
class JoinScope {
 public:
  JoinScope(const std::vector<Joinable*>& joinables, comm::ProcessGroup& group,
            const JoinOptions& options)
      : joinables_(joinables), group_(group) {
    try {
      for (Joinable* joinable : joinables_) joinable->begin_join(options);
      group_.announce_collectives(true);
    } catch (...) {
      abandon();
      throw;
    }
  }
  ~JoinScope() {
    if (active_) abandon();
  }
  JoinScope(const JoinScope&) = delete;
  JoinScope& operator=(const JoinScope&) = delete;

  void end(int last) {
    active_ = false;
    for (Joinable* joinable : joinables_) joinable->end_join(last);
  }

 private:
  void abandon() noexcept {
    group_.announce_collectives(false);
    for (Joinable* joinable : joinables_) joinable->abandon_join();
  }

  const std::vector<Joinable*>& joinables_;
  comm::ProcessGroup& group_;
  bool active_ = true;
};

}  // namespace

void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options) {
  const std::shared_ptr<comm::ProcessGroup> group = common_group(joinables);
  check(static_cast<bool>(body), "[join] the body is empty");
  if (!options.enable) {
    body();
    return;
  }
  parallel::require_agreement(
      *group, "[join] options",
      {str("join: divide_by_initial_world_size ", options.divide_by_initial_world_size,
           ", throw_on_early_termination ", options.throw_on_early_termination)});
  JoinScope scope(joinables, *group, options);
  body();
  bool exhausted = false;
  const std::int64_t shadowed = group->shadow([&](const std::string& owner) {
    for (Joinable* joinable : joinables) joinable->shadowed(owner);
    exhausted = options.throw_on_early_termination && owner == parallel::kJoinMeeting;
    return !exhausted;
  });
  if (exhausted) {
    throw InputsExhausted(str("[join] rank ", group->rank(), " has exhausted all inputs"));
  }
  scope.end(last_rank(*group, shadowed));
}

}  // namespace cohort
