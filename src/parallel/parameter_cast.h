#pragma once

#include <utility>
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
  ~ParameterCast() { restore(); }
  ParameterCast(const ParameterCast&) = delete;
  ParameterCast& operator=(const ParameterCast&) = delete;

  void exchange();
  void restore() noexcept;

 private:
  std::vector<Tensor> parameters_;
  DType dtype_;
  std::vector<std::pair<Tensor, Tensor>> exchanged_;  // parameter, and what holds its contents
};

}  // namespace cohort::parallel
