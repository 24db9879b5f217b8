#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

class MatmulKernels {
 public:
  virtual ~MatmulKernels() = default;
};

}  // namespace cohort::backend
