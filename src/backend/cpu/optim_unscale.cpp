#include <bit>
#include <cstdint>

#include "backend/cpu/floating.h"
#include "backend/cpu/optim_updates.h"

namespace cohort::backend::cpu {
namespace {

// A number of any IEEE format is infinite or NaN when all bits of its exponent are set. Integer
// arithmetic without branches, which compilers turn into vector code.
template <typename T>
struct Format;
template <>
struct Format<float> {
  using Bits = std::uint32_t;
  using Compute = float;
  static constexpr Bits exponent = 0x7f800000u;
};
template <>
struct Format<double> {
  using Bits = std::uint64_t;
  using Compute = double;
  static constexpr Bits exponent = 0x7ff0000000000000u;
};
template <>
struct Format<BFloat16> {
  using Bits = std::uint16_t;
  using Compute = float;
  static constexpr Bits exponent = 0x7f80u;
};
template <>
struct Format<Float16> {
  using Bits = std::uint16_t;
  using Compute = float;
  static constexpr Bits exponent = 0x7c00u;
};

template <typename T>
typename Format<T>::Bits nonfinite(T value) {
  using Bits = typename Format<T>::Bits;
  const Bits set = std::bit_cast<Bits>(value) & Format<T>::exponent;
  return static_cast<Bits>(set == Format<T>::exponent);
}

// Checks, and with `scale` also multiplies: the values are in registers anyway.
template <typename T>
bool pass(T* values, std::int64_t count, double factor, bool scale) {
  using Compute = typename Format<T>::Compute;
  const auto f = static_cast<Compute>(factor);
  typename Format<T>::Bits found = 0;
  if (!scale) {
    for (std::int64_t i = 0; i < count; ++i) found |= nonfinite(values[i]);
    return found != 0;
  }
  for (std::int64_t i = 0; i < count; ++i) {
    found |= nonfinite(values[i]);
    values[i] = static_cast<T>(static_cast<Compute>(values[i]) * f);
  }
  return found != 0;
}

}  // namespace

void unscale(const View& flag, const View& grad, double factor) {
  dispatch_floating(grad.dtype, [&](auto zero) {
    using T = decltype(zero);
    if (pass(grad.as<T>(), grad.numel, factor, factor != 1)) *flag.as<std::int32_t>() = 1;
  });
}

}  // namespace cohort::backend::cpu
