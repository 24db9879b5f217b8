#pragma once

#include <functional>
#include <string>
#include <vector>

#include "cohort/core/tensor.h"
#include "support/reference.h"

namespace cohort::test {

using Operation = std::function<Tensor(const std::vector<Tensor>&)>;

// Runs `operation` on the inputs of a reference case and compares its output, and the gradients of
// all inputs that have one in the file.
inline void expect_parity(const Reference& reference, const std::string& name,
                          const Operation& operation, double relative = 1e-5,
                          double absolute = 2e-6) {
  SCOPED_TRACE(name);
  std::vector<Tensor> inputs;
  const auto key = [&](std::size_t i) { return name + ".in" + std::to_string(i); };
  while (reference.has(key(inputs.size()))) {
    // A copy: a leaf of its own for each case.
    const Tensor& stored = reference.get(key(inputs.size()));
    Tensor input = Tensor::empty(stored.shape(), stored.options()).copy_(stored);
    if (reference.has(key(inputs.size()) + ".grad")) input.set_requires_grad(true);
    inputs.push_back(input);
  }
  ASSERT_FALSE(inputs.empty());
  const Tensor out = operation(inputs);
  EXPECT_TRUE(close(out, reference.get(name + ".out"), relative, absolute));
  if (!reference.has(name + ".grad")) return;
  out.backward(reference.get(name + ".grad"));
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!reference.has(key(i) + ".grad")) continue;
    EXPECT_TRUE(close(inputs[i].grad(), reference.get(key(i) + ".grad"), relative, absolute))
        << "gradient of input " << i;
  }
}

}  // namespace cohort::test
