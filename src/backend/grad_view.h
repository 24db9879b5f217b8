#pragma once

#include "backend/view.h"

namespace cohort::backend {

// Where a kernel leaves a gradient: overwritten, or added to what is there.
struct GradView {
  View view;
  bool wanted = false;
  bool accumulate = false;
};

}  // namespace cohort::backend
