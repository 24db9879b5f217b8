#pragma once

#include "backend/view.h"
#include "cohort/core/stream.h"

namespace cohort::backend {

class ConvKernels {
 public:
  virtual ~ConvKernels() = default;
};

}  // namespace cohort::backend
