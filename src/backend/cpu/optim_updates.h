#pragma once

// The vector loops of the optimizer kernels, over elements of one type side by side.

#include <cstddef>

#include "backend/optim_kernels.h"

namespace cohort::backend::cpu {

// What an update reads and writes; null where the optimizer has no such state.
template <typename T>
struct SgdOperands {
  T* param;
  const T* grad;
  T* buffer;
};

template <typename T>
struct AdamOperands {
  T* param;
  const T* grad;
  T* m;
  T* v;
  T* max_v;
};

void sgd_update(const SgdOperands<float>& at, std::size_t count, const SgdParams& params);
void sgd_update(const SgdOperands<double>& at, std::size_t count, const SgdParams& params);
void adam_update(const AdamOperands<float>& at, std::size_t count, const AdamParams& params);
void adam_update(const AdamOperands<double>& at, std::size_t count, const AdamParams& params);

void unscale(const View& flag, const View& grad, double factor);

}  // namespace cohort::backend::cpu
