#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

class OptimKernels {
 public:
  virtual ~OptimKernels() = default;
};

}  // namespace cohort::backend
