#pragma once

#include <string>
#include <unordered_map>
#include <vector>

#include "cohort/core/random.h"
#include "cohort/nn/module.h"
#include "cohort/parallel/fsdp_options.h"
#include "parallel/fsdp_agreement.h"

namespace cohort::parallel {

bool is_on_meta_device(const nn::NamedTensor& named);
// Whether a parameter or buffer of the tree is on the meta device.
bool is_on_meta(const nn::Module& module);

// Gives the parameters and buffers of a model that are on the meta device memory and values, module
// by module, in the order of Module::apply(): that of to_empty() and apply(reset_parameters), and
// of a model made on the CPU at once.
//
// With sync_module_states, values are made only where rank 0 needs some itself; it sends the others
// theirs.
class MetaInitializer {
 public:
  // Collective with sync_module_states.
  MetaInitializer(nn::Module& root, const FSDPOptions& options, RankAgreement& agreement);

  // Whether any rank may have something to do.
  bool active() const { return active_; }
  // The module's own tensors, not its children's. InvalidArgument, which lists all modules of the
  // tree that leave a tensor without values.
  void initialise(nn::Module& module);
  // All tensors that initialise() has filled are on the meta device again, whatever they are now,
  // and the generator is where it was.
  void undo() noexcept;

 private:
  struct Made {
    Tensor tensor;
    Shape shape;
    DType dtype;
  };

  std::string problems_of(nn::Module& module);
  static void to_meta(const Made& made);

  nn::Module& root_;
  const FSDPOptions& options_;
  std::unordered_map<const nn::Module*, std::string> names_;
  std::vector<Made> made_;
  PhiloxState generator_;
  bool active_ = false;
  bool resets_ = true;
};

}  // namespace cohort::parallel
