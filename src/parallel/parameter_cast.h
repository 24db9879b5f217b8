#pragma once

#include <vector>

#include "cohort/core/tensor.h"

namespace cohort::parallel {

// Lets a module compute with its parameters in another dtype. While they are exchanged, the
// parameters' handles name copies of them, which belong to the graph: gradients flow through the
// conversion into the parameters themselves, in their own dtype. Belongs to the rank's host thread.
class ParameterCast {
 public:
  // Floating `parameters` that have another dtype already.
  ParameterCast(const std::vector<Tensor>& parameters, DType dtype);
  ParameterCast(const ParameterCast&) = delete;
  ParameterCast& operator=(const ParameterCast&) = delete;

  // Nest: a forward may call itself. Both from the thread whose context they are to hold for.
  void exchange();
  void restore() noexcept;

 private:
  void swap_all() noexcept;

  std::vector<Tensor> parameters_;
  DType dtype_;
  int depth_ = 0;
  std::vector<Tensor> copies_;  // while exchanged they hold what the parameters are
};

}  // namespace cohort::parallel
