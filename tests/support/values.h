#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cohort/core/random.h"
#include "cohort/core/tensor.h"

namespace cohort::test {

// Pseudo-random numbers in [-1, 1), the same for the same shape and seed, as a leaf that wants a
// gradient when it is f64 (gradcheck's dtype).
inline Tensor values(const Shape& shape, DType dtype = f64, std::uint64_t seed = 1) {
  Generator generator(seed);
  const auto count = static_cast<std::uint64_t>(shape.product());
  const PhiloxState state = generator.reserve(count);
  std::vector<double> numbers(count);
  for (std::uint64_t i = 0; i < count; ++i) numbers[i] = 2 * uniform_from_bits(state.bits(i)) - 1;
  Tensor result = Tensor::empty(shape, {dtype}).copy_(Tensor::from(numbers, shape));
  if (dtype == f64) result.set_requires_grad(true);
  return result;
}

// Runs `run`, which must throw an E, and returns its message.
template <typename E, typename F>
std::string message_of(F&& run) {
  try {
    run();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "threw something else: " << error.what();
    return {};
  }
  ADD_FAILURE() << "threw nothing";
  return {};
}

}  // namespace cohort::test
