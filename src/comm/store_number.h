#pragma once

#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace cohort::comm {

// The sum of the decimal number `text` and `delta`; nothing when `text` is no number or the sum
// does not fit.
inline std::optional<std::int64_t> add_to_decimal(std::string_view text, std::int64_t delta) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  std::int64_t sum = 0;
  if (__builtin_add_overflow(number, delta, &sum)) return std::nullopt;
  return sum;
}

}  // namespace cohort::comm
