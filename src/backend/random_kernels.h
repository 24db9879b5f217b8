#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

class RandomKernels {
 public:
  virtual ~RandomKernels() = default;
};

}  // namespace cohort::backend
