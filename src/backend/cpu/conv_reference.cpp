#include "backend/cpu/conv.h"

namespace cohort::backend::cpu {

bool conv2d_library(const Stream&, const ConvArgs&) {
  return false;
}

bool conv2d_backward_data_library(const Stream&, const ConvArgs&) {
  return false;
}

bool conv2d_backward_weight_library(const Stream&, const ConvArgs&) {
  return false;
}

}  // namespace cohort::backend::cpu
