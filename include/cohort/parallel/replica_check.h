#pragma once

#include <cstdint>
#include <memory>

#include "cohort/comm/process_group.h"
#include "cohort/nn/module.h"

namespace cohort {

struct ReplicaCheckOptions {
  // step() compares at every so many calls. Positive.
  std::int64_t every_steps = 100;
  // Compares buffers too. Under DDP they are equal only with broadcast_buffers, and only until the
  // next forward has changed them.
  bool buffers = false;
};

// Compares the parameters of `module` over the ranks of `group`, bit by bit: -0.0 is not 0.0, and
// two NaN are equal when their bits are. Each rank hashes its bytes (64 bits; docs/hangs.md names
// the algorithm) and the ranks exchange one hash of 8 bytes; only when these differ a second
// exchange finds the tensor and the ranks. Nothing is written. Frozen parameters count; a parameter
// without elements has its name, shape and dtype compared.
//
// Collective, blocks. ReplicaError on every rank; the group goes on. CommError as from any
// collective. A world of one has nothing to compare.
void check_replicas(const nn::Module& module, comm::ProcessGroup& group,
                    const ReplicaCheckOptions& options = {});

// The same every K steps: call step() on all ranks after each step of the optimizer.
class ReplicaCheck {
 public:
  // InvalidArgument unless every_steps is positive and both pointers are set.
  ReplicaCheck(std::shared_ptr<const nn::Module> module, std::shared_ptr<comm::ProcessGroup> group,
               ReplicaCheckOptions options = {});

  // Counts a step, and compares at every options.every_steps-th. The error names the step.
  void step();
  std::int64_t steps() const { return steps_; }

 private:
  std::shared_ptr<const nn::Module> module_;
  std::shared_ptr<comm::ProcessGroup> group_;
  ReplicaCheckOptions options_;
  std::int64_t steps_ = 0;
};

}  // namespace cohort
