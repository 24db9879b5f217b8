#pragma once

#include <functional>
#include <span>

#include "cohort/core/tensor.h"

namespace cohort::parallel {

// Puts a node that changes nothing behind those of `tensors` that take part in a graph, and
// replaces them by its outputs. In backward it calls `passing` once, when all the gradients of its
// outputs that will come are there, and before they go on. False when no tensor takes part in a
// graph.
bool put_boundary(std::span<Tensor> tensors, std::function<void()> passing);

}  // namespace cohort::parallel
