#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

class NormKernels {
 public:
  virtual ~NormKernels() = default;
};

}  // namespace cohort::backend
