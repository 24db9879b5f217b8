#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

class IndexKernels {
 public:
  virtual ~IndexKernels() = default;
};

}  // namespace cohort::backend
