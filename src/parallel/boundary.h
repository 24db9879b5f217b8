#pragma once

#include <functional>
#include <span>

#include "cohort/core/tensor.h"

namespace cohort::parallel {

// Puts a node that changes nothing behind each of `tensors` that takes part in a graph, and
// replaces it by the node's output. In backward each node calls `passing` when the gradient of its
// tensor is there, before it goes on; a tensor that does not matter to the loss never does. False
// when no tensor takes part in a graph.
bool put_boundary(std::span<Tensor> tensors, std::function<void()> passing);

}  // namespace cohort::parallel
