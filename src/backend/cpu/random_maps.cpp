#include "backend/cpu/random_maps.h"

#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "backend/cpu/random_maps.cpp"
#include "hwy/foreach_target.h"
//
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace cohort::backend::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Philox on 64 counters side by side: the loops over them become vectors.
constexpr std::size_t kWidth = 64;

void philox(const PhiloxState& state, std::uint64_t first_block, std::size_t blocks,
            std::uint32_t* HWY_RESTRICT bits) {
  using Word = std::uint32_t;
  const auto high = [](std::uint64_t value) { return static_cast<Word>(value >> 32); };
  for (std::size_t start = 0; start < blocks; start += kWidth) {
    HWY_ALIGN Word c[4][kWidth];
    for (std::size_t j = 0; j < kWidth; ++j) {
      const std::uint64_t low = state.offset + first_block + start + j;
      c[0][j] = static_cast<Word>(low);
      c[1][j] = high(low);
      c[2][j] = static_cast<Word>(state.subsequence);
      c[3][j] = high(state.subsequence);
    }
    Word k0 = static_cast<Word>(state.seed);
    Word k1 = high(state.seed);
    for (int round = 0; round < 10; ++round) {
      for (std::size_t j = 0; j < kWidth; ++j) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * c[0][j];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * c[2][j];
        c[0][j] = static_cast<Word>(p1 >> 32) ^ c[1][j] ^ k0;
        c[1][j] = static_cast<Word>(p1);
        c[2][j] = static_cast<Word>(p0 >> 32) ^ c[3][j] ^ k1;
        c[3][j] = static_cast<Word>(p0);
      }
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    for (std::size_t j = 0; j < kWidth; ++j) {
      for (std::size_t lane = 0; lane < 4; ++lane) bits[4 * (start + j) + lane] = c[lane][j];
    }
  }
}

// Even bits are the u, odd ones the v of core/random.h's uniform numbers; in f64 the errors of
// logarithm and sine (4 ulp) vanish when the result is rounded to f32.
void normal_pairs(const std::uint32_t* HWY_RESTRICT bits, double* HWY_RESTRICT values,
                  std::size_t count) {
  const hn::ScalableTag<double> d;
  constexpr std::size_t kLanes = hn::MaxLanes(hn::ScalableTag<double>());
  constexpr std::size_t kPairs = 32;
  for (std::size_t start = 0; start < count; start += 2 * kPairs) {
    HWY_ALIGN double first[kPairs];
    HWY_ALIGN double second[kPairs];
    for (std::size_t j = 0; j < kPairs; ++j) {
      first[j] = 1.0 - (bits[start + 2 * j] >> 8) * 0x1p-24;
      second[j] = (bits[start + 2 * j + 1] >> 8) * 0x1p-24;
    }
    for (std::size_t j = 0; j < kPairs; j += kLanes) {
      const auto radius = hn::Sqrt(hn::Mul(hn::Set(d, -2.0), hn::Log(d, hn::Load(d, first + j))));
      const auto angle = hn::Mul(hn::Set(d, 6.283185307179586477), hn::Load(d, second + j));
      hn::Store(hn::Mul(radius, hn::Cos(d, angle)), d, first + j);
      hn::Store(hn::Mul(radius, hn::Sin(d, angle)), d, second + j);
    }
    for (std::size_t j = 0; j < kPairs; ++j) {
      values[start + 2 * j] = first[j];
      values[start + 2 * j + 1] = second[j];
    }
  }
}

// uniform < p is a comparison of the 24 bits it is made of with p * 2^24, exact in integers.
template <typename T>
HWY_INLINE void drop_below(const std::uint32_t* HWY_RESTRICT bits, const T* in, T* out,
                           std::size_t count, double p) {
  const double scaled = p * 0x1p24;
  auto threshold = static_cast<std::uint32_t>(scaled);
  if (threshold < scaled) ++threshold;
  const T keep = static_cast<T>(1.0 / (1.0 - p));
  for (std::size_t i = 0; i < count; ++i) {
    const T value = in[i];
    out[i] = (bits[i] >> 8) < threshold ? T{0} : value * keep;
  }
}

void drop_f32(const std::uint32_t* bits, const float* in, float* out, std::size_t count, double p) {
  drop_below(bits, in, out, count, p);
}
void drop_f64(const std::uint32_t* bits, const double* in, double* out, std::size_t count,
              double p) {
  drop_below(bits, in, out, count, p);
}

}  // namespace cohort::backend::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::backend::cpu {

HWY_EXPORT(philox);
HWY_EXPORT(normal_pairs);
HWY_EXPORT(drop_f32);
HWY_EXPORT(drop_f64);

void philox_bits(const PhiloxState& state, std::uint64_t first_block, std::size_t blocks,
                 std::uint32_t* bits) {
  HWY_DYNAMIC_DISPATCH(philox)(state, first_block, blocks, bits);
}
void box_muller(const std::uint32_t* bits, double* values, std::size_t count) {
  HWY_DYNAMIC_DISPATCH(normal_pairs)(bits, values, count);
}
void drop(const std::uint32_t* bits, const float* in, float* out, std::size_t count, double p) {
  HWY_DYNAMIC_DISPATCH(drop_f32)(bits, in, out, count, p);
}
void drop(const std::uint32_t* bits, const double* in, double* out, std::size_t count, double p) {
  HWY_DYNAMIC_DISPATCH(drop_f64)(bits, in, out, count, p);
}

}  // namespace cohort::backend::cpu
#endif  // HWY_ONCE
