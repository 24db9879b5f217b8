#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "cohort/comm/process_group.h"
#include "cohort/core/error.h"

namespace cohort {

// Options of join, with PyTorch's names and defaults. All ranks must give the same ones.
struct JoinOptions {
  // True: gradients are divided by the group's size, so that a rank without inputs counts as one
  // with gradients of zero. False: by the number of ranks that still have inputs.
  bool divide_by_initial_world_size = true;
  // False: join() only runs the body; for inputs that are known to be even.
  bool enable = true;
  // True: when one rank has used up its inputs, all ranks throw InputsExhausted.
  bool throw_on_early_termination = false;
};

// Thrown by join() on all ranks under throw_on_early_termination. The group goes on.
class InputsExhausted : public Error {
 public:
  using Error::Error;
};

// Something whose collectives join() keeps matched: DDP is one.
class Joinable {
 public:
  virtual ~Joinable() = default;
  virtual const std::shared_ptr<comm::ProcessGroup>& join_group() const = 0;
  // The body begins, and has ended on all ranks. `last` is a rank that had inputs to the end: its
  // state is the one that counts. Collective.
  virtual void begin_join(const JoinOptions& options) = 0;
  virtual void end_join(int last) = 0;
  // The body ended by an exception; undoes begin_join().
  virtual void abandon_join() noexcept = 0;
  // A collective `owner` of another rank, in which this one has just taken part.
  virtual void shadowed(const std::string& /*owner*/) {}
};

// Trains on uneven inputs: runs `body`, the loop over this rank's inputs, and then takes part in
// the collectives of the ranks that have more, with values that change nothing (zeros in a sum),
// until all are done. That covers every collective of the joinables' group that `body` causes:
// gradients, buffers, SyncBatchNorm, and the user's own all_reduce, reduce_scatter, all_gather,
// broadcast (from a rank that still has inputs) and barrier; others throw NotSupported on all
// ranks. While it runs, each collective is preceded by an announcement, one small all-reduce.
//
// At the end parameters and buffers of the last rank replace the others'. Collective.
// InvalidArgument when `joinables` is empty or has more than one group. An exception of `body`
// passes through unchanged.
//
//   ddp.join([&] { for (const auto& batch : loader) step(batch); });
void join(const std::vector<Joinable*>& joinables, const std::function<void()>& body,
          const JoinOptions& options = {});

}  // namespace cohort
