#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

class ReduceKernels {
 public:
  virtual ~ReduceKernels() = default;
};

}  // namespace cohort::backend
