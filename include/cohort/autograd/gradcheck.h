#pragma once

#include <functional>
#include <vector>

#include "cohort/core/tensor.h"

namespace cohort {

struct GradcheckOptions {
  double step = 1e-6;      // of the central difference
  double relative = 1e-6;  // |analytic - numeric| <= absolute + relative * |numeric|
  double absolute = 1e-7;
};

// Compares the gradients of `function` with central differences, for every input that requires a
// gradient (they must be f64) and every element of every output, weighted by fixed pseudo-random
// numbers. Throws AutogradError naming input, element and both values where they differ.
void gradcheck(const std::function<std::vector<Tensor>(const std::vector<Tensor>&)>& function,
               const std::vector<Tensor>& inputs, const GradcheckOptions& options = {});

}  // namespace cohort
