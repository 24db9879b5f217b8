#include <algorithm>
#include <cmath>

#include "backend/cpu/elementwise_convert.h"
#include "backend/cpu/families.h"
#include "backend/cpu/random_maps.h"
#include "backend/elementwise_loops.h"
#include "backend/random_kernels.h"

namespace cohort::backend::cpu {
namespace {

// Elements at a time, 64 blocks of four.
constexpr std::int64_t kChunk = 256;
constexpr std::size_t kBlocks = kChunk / 4;

// fn(bits, first element, count) for every chunk of `count` elements.
template <typename F>
void for_each_chunk(std::int64_t count, const PhiloxState& state, F&& fn) {
  alignas(64) std::uint32_t bits[kChunk];
  for (std::int64_t i = 0; i < count; i += kChunk) {
    philox_bits(state, static_cast<std::uint64_t>(i / 4), kBlocks, bits);
    fn(bits, i, std::min(kChunk, count - i));
  }
}

std::byte* element(const View& view, std::int64_t i) {
  return view.as<std::byte>() + i * static_cast<std::int64_t>(item_size(view.dtype));
}

// The largest T below `high`, which a rounded number may otherwise reach.
template <typename T>
double below(double high) {
  if constexpr (std::is_same_v<T, double>) {
    return std::nextafter(high, -HUGE_VAL);
  } else {
    const T near(static_cast<float>(high));
    if (static_cast<float>(near) < high) return static_cast<float>(near);
    if constexpr (std::is_same_v<T, float>) return std::nextafter(near, -HUGE_VALF);
    // bf16 and f16 are sign and magnitude.
    if constexpr (sizeof(T) == 2) {
      if (near.bits == 0) return static_cast<float>(T::from_bits(0x8001));
      const bool negative = (near.bits & 0x8000) != 0;
      const int bits = near.bits + (negative ? 1 : -1);
      return static_cast<float>(T::from_bits(static_cast<std::uint16_t>(bits)));
    }
  }
}

double below(double high, DType dtype) {
  switch (dtype) {
    case DType::f64:
      return below<double>(high);
    case DType::bf16:
      return below<BFloat16>(high);
    case DType::f16:
      return below<Float16>(high);
    default:
      return below<float>(high);
  }
}

template <typename T>
void uniform_now(const View& out, double low, double high, const PhiloxState& state) {
  const T base = static_cast<T>(low);
  const T range = static_cast<T>(high - low);
  const T top = static_cast<T>(low < high ? below(high, out.dtype) : high);
  for_each_chunk(
      out.numel, state, [&](const std::uint32_t* bits, std::int64_t i, std::int64_t count) {
        alignas(64) T values[kChunk];
        for (std::int64_t j = 0; j < count; ++j) {
          values[j] = std::min(base + static_cast<T>(uniform_from_bits(bits[j])) * range, top);
        }
        store(element(out, i), out.dtype, values, static_cast<std::size_t>(count));
      });
}

void normal_now(const View& out, double mean, double deviation, const PhiloxState& state) {
  for_each_chunk(out.numel, state,
                 [&](const std::uint32_t* bits, std::int64_t i, std::int64_t count) {
                   alignas(64) double values[kChunk];
                   box_muller(bits, values, kChunk);
                   for (std::int64_t j = 0; j < count; ++j)
                     values[j] = mean + deviation * values[j];
                   store(element(out, i), out.dtype, values, static_cast<std::size_t>(count));
                 });
}

template <typename T>
void dropout_now(const View& out, const View& in, double p, const PhiloxState& state) {
  for_each_chunk(out.numel, state,
                 [&](const std::uint32_t* bits, std::int64_t i, std::int64_t count) {
                   const auto n = static_cast<std::size_t>(count);
                   if (out.dtype == dtype_of<T>) {
                     return drop(bits, reinterpret_cast<const T*>(element(in, i)),
                                 reinterpret_cast<T*>(element(out, i)), n, p);
                   }
                   alignas(64) T values[kChunk];
                   load(values, element(in, i), in.dtype, n);
                   drop(bits, values, values, n, p);
                   store(element(out, i), out.dtype, values, n);
                 });
}

class CpuRandom final : public RandomKernels {
 public:
  void uniform(const Stream& stream, const View& out, double low, double high,
               const PhiloxState& state) const override {
    stream.launch([=] {
      if (out.dtype == DType::f64) {
        uniform_now<double>(out, low, high, state);
      } else {
        uniform_now<float>(out, low, high, state);
      }
    });
  }
  void normal(const Stream& stream, const View& out, double mean, double deviation,
              const PhiloxState& state) const override {
    stream.launch([=] { normal_now(out, mean, deviation, state); });
  }
  void dropout(const Stream& stream, const View& out, const View& in, double p,
               const PhiloxState& state) const override {
    stream.launch([=] {
      if (out.dtype == DType::f64) {
        dropout_now<double>(out, in, p, state);
      } else {
        dropout_now<float>(out, in, p, state);
      }
    });
  }
};

}  // namespace

const RandomKernels& random_kernels() {
  static const CpuRandom instance;
  return instance;
}

}  // namespace cohort::backend::cpu
