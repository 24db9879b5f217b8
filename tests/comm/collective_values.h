#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "cohort/comm/local_world.h"
#include "cohort/core/half.h"
#include "cohort/core/random.h"
#include "cohort/core/tensor.h"

namespace cohort::test {

// Values whose sums over eight ranks are exact in every dtype: small multiples of a quarter for
// floating ones, small integers for the others.
template <typename T>
T rank_value(int rank, std::int64_t i) {
  const std::int64_t step = (i * 7 + rank * 13) % 11;
  if constexpr (std::is_same_v<T, bool>) {
    return step % 3 == 0;
  } else if constexpr (std::is_same_v<T, std::uint8_t>) {
    return static_cast<std::uint8_t>(step);
  } else if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(step - 5);
  } else {
    return T(static_cast<float>(step - 5) * 0.25f);
  }
}

// The same, as a number to compare with.
template <typename T>
double as_number(T value) {
  if constexpr (std::is_arithmetic_v<T>) {
    return static_cast<double>(value);
  } else {
    return static_cast<double>(static_cast<float>(value));
  }
}

// `value(i)` for functions that repeat after 165 elements: those of rank_value, and of i modulo 3,
// 5 or 11. One period is computed now, so that large tensors cost a look-up per element.
template <typename Value>
auto periodic(Value value) {
  constexpr std::int64_t kPeriod = 3 * 5 * 11;
  std::vector<decltype(value(0))> table;
  for (std::int64_t i = 0; i < kPeriod; ++i) table.push_back(value(i));
  return [table = std::move(table)](std::int64_t i) {
    return table[static_cast<std::size_t>(i % kPeriod)];
  };
}

// Numbers of very different size, so that every order of summation has bits of its own.
template <typename T>
T wild_value(int rank, std::int64_t i) {
  const PhiloxState state{77, static_cast<std::uint64_t>(rank), 0};
  const std::uint32_t bits = state.bits(static_cast<std::uint64_t>(i));
  const int exponent = std::is_same_v<T, Float16> ? static_cast<int>(bits % 12) - 6
                                                  : static_cast<int>(bits % 40) - 20;
  const float mantissa = 1 + static_cast<float>(bits >> 8) * 0x1p-24f;
  const float value = std::ldexp(mantissa, exponent);
  return T(bits & 0x80 ? -value : value);
}

// Sets element i to value(i).
template <typename T, typename Value>
void fill_with(const Tensor& tensor, Value value) {
  T* data = tensor.data<T>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = value(i);
}

// Expects element i to equal expected(i); reports the first that does not.
template <typename T, typename Expected>
void expect_elements(const Tensor& tensor, Expected expected, const std::string& what) {
  const T* data = tensor.data<T>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    if (as_number(data[i]) != as_number(static_cast<T>(expected(i)))) {
      ADD_FAILURE() << what << ": element " << i << " of " << tensor.numel() << " is "
                    << as_number(data[i]) << ", not " << as_number(static_cast<T>(expected(i)));
      return;
    }
  }
}

// The bytes of a tensor, to compare bits.
inline std::vector<std::uint8_t> bytes_of(const Tensor& tensor) {
  const Tensor flat = tensor.detach();
  const auto* data = dispatch(flat.dtype(), [&](auto zero) {
    return reinterpret_cast<const std::uint8_t*>(flat.data<decltype(zero)>());
  });
  return std::vector<std::uint8_t>(data, data + flat.bytes());
}

// The message of the E that `body` throws; fails the test when it throws something else or nothing.
template <typename E, typename Body>
std::string message_of(Body&& body) {
  try {
    body();
  } catch (const E& error) {
    return error.what();
  } catch (const std::exception& error) {
    ADD_FAILURE() << "another error: " << error.what();
    return {};
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace cohort::test
