#include "backend/cpu/reduce_exact.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "backend/cpu/elementwise_convert.h"
#include "cohort/ops/reduce.h"

namespace cohort::backend::cpu {
namespace {

__extension__ using Wide = unsigned __int128;

constexpr int kLimbs = kExactSumSize - 2;
constexpr int kInfinities = kLimbs;
constexpr int kNans = kLimbs + 1;
// 2^kUnit is the value of limb 0's lowest bit.
constexpr int kUnit = -2148;

// limbs += value * 2^exponent.
void add_scaled(std::int64_t* limbs, std::uint64_t value, int exponent) {
  const int position = exponent - kUnit;
  const auto limb = static_cast<std::size_t>(position / 32);
  const Wide bits = Wide{value} << (position % 32);
  limbs[limb] += static_cast<std::int64_t>(static_cast<std::uint32_t>(bits));
  limbs[limb + 1] += static_cast<std::int64_t>(static_cast<std::uint32_t>(bits >> 32));
  limbs[limb + 2] += static_cast<std::int64_t>(static_cast<std::uint32_t>(bits >> 64));
}

// Brings every limb but the last into [0, 2^32).
void carry(std::int64_t* limbs) {
  std::int64_t over = 0;
  for (int i = 0; i < kLimbs - 1; ++i) {
    const std::int64_t sum = limbs[i] + over;
    limbs[i] = sum & 0xffffffff;
    over = sum >> 32;
  }
  limbs[kLimbs - 1] += over;
}

void count_special(std::int64_t* limbs, bool nan) {
  ++limbs[nan ? kNans : kInfinities];
}

// A float is m * 2^(e - 150) with a 24-bit m and the biased exponent e, at least 1.
struct FloatParts {
  std::uint32_t exponent;
  std::uint64_t square;  // of m

  explicit FloatParts(float value) {
    const auto bits = std::bit_cast<std::uint32_t>(value);
    const std::uint32_t biased = bits >> 23 & 0xffu;
    const std::uint64_t m = (bits & 0x7fffffu) | (biased != 0 ? 0x800000u : 0u);
    exponent = biased;
    square = m * m;
  }
  bool special() const { return exponent == 255; }
  int scale() const { return 2 * (std::max(static_cast<int>(exponent), 1) - 150); }
};

// Squares of one exponent are added as integers of 48 bits. Four tables take turns, so that an
// addition does not wait for the one before; 2^16 additions to each cannot overflow 64 bits.
class FloatBins {
 public:
  static constexpr std::int64_t kCapacity = 4 << 16;

  void add(const float* from, std::size_t count) {
    for (std::size_t i = 0; i < count; ++i) {
      const FloatParts parts(from[i]);
      bins_[i % 4][parts.exponent] += parts.square;
    }
  }

  void flush(std::int64_t* limbs) {
    for (auto& bins : bins_) {
      for (int e = 0; e < 255; ++e) {  // what is in bin 255 stands for no number
        if (bins[e] != 0) add_scaled(limbs, bins[e], 2 * (std::max(e, 1) - 150));
      }
      std::fill(std::begin(bins), std::end(bins), 0);
    }
    carry(limbs);
  }

  bool has_special() const {
    return std::any_of(std::begin(bins_), std::end(bins_),
                       [](const auto& bins) { return bins[255] != 0; });
  }

 private:
  std::uint64_t bins_[4][256] = {};
};

// Elements brought to f32 at a time.
constexpr std::int64_t kChunk = 1024;
// Clearing and emptying the bins costs as much as adding some hundred elements one by one.
constexpr std::int64_t kFew = 256;

void add_few(std::int64_t* limbs, const float* from, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    const FloatParts parts(from[i]);
    if (!parts.special()) add_scaled(limbs, parts.square, parts.scale());
  }
  carry(limbs);
}

void add_floats(std::int64_t* limbs, const View& in) {
  alignas(64) float buffer[kChunk];
  const auto item = static_cast<std::int64_t>(item_size(in.dtype));
  const auto chunk = [&](std::int64_t i, std::int64_t count) {
    const std::byte* from = in.as<const std::byte>() + i * item;
    if (in.dtype == DType::f32) return reinterpret_cast<const float*>(from);
    load(buffer, from, in.dtype, static_cast<std::size_t>(count));
    return static_cast<const float*>(buffer);
  };
  // Rare, and so on a second pass: the sum is not a number then.
  const auto count_specials = [&](const float* from, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (!std::isfinite(from[i])) count_special(limbs, std::isnan(from[i]));
    }
  };
  if (in.numel <= kFew) {
    const float* from = chunk(0, in.numel);
    add_few(limbs, from, static_cast<std::size_t>(in.numel));
    return count_specials(from, in.numel);
  }
  FloatBins bins;
  std::int64_t since_flush = 0;
  bool special = false;
  for (std::int64_t i = 0; i < in.numel; i += kChunk) {
    const std::int64_t count = std::min(kChunk, in.numel - i);
    bins.add(chunk(i, count), static_cast<std::size_t>(count));
    since_flush += count;
    if (since_flush + kChunk > FloatBins::kCapacity || i + count == in.numel) {
      special = special || bins.has_special();
      bins.flush(limbs);
      since_flush = 0;
    }
  }
  for (std::int64_t i = 0; special && i < in.numel; i += kChunk) {
    const std::int64_t count = std::min(kChunk, in.numel - i);
    count_specials(chunk(i, count), count);
  }
}

// A double is m * 2^(e - 1075) with a 53-bit m: its square has 106 bits, added in two pieces.
void add_doubles(std::int64_t* limbs, const double* from, std::int64_t count) {
  constexpr std::int64_t kCarryEvery = std::int64_t{1} << 29;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint64_t>(from[i]);
    const int biased = static_cast<int>(bits >> 52 & 0x7ffu);
    const std::uint64_t fraction = bits & 0xfffffffffffffu;
    if (biased == 0x7ff) {
      count_special(limbs, fraction != 0);
      continue;
    }
    const std::uint64_t m = fraction | (biased != 0 ? std::uint64_t{1} << 52 : 0);
    const auto square = Wide{m} * m;
    const int exponent = 2 * (std::max(biased, 1) - 1075);
    add_scaled(limbs, static_cast<std::uint64_t>(square), exponent);
    add_scaled(limbs, static_cast<std::uint64_t>(square >> 64), exponent + 64);
    if (i % kCarryEvery == kCarryEvery - 1) carry(limbs);
  }
  carry(limbs);
}

}  // namespace

void add_squares_now(const View& limbs, const View& in) {
  auto* sums = limbs.as<std::int64_t>();
  if (in.dtype == DType::f64) {
    add_doubles(sums, in.as<const double>(), in.numel);
  } else {
    add_floats(sums, in);
  }
}

double root_of_limbs(const std::int64_t* given) {
  if (given[kNans] != 0) return std::numeric_limits<double>::quiet_NaN();
  if (given[kInfinities] != 0) return std::numeric_limits<double>::infinity();
  std::int64_t limbs[kLimbs];
  std::copy_n(given, kLimbs, limbs);
  carry(limbs);
  int top = kLimbs - 1;
  while (top > 0 && limbs[top] == 0) --top;
  // Three limbs from the top hold 64 to 96 leading bits, of which a double keeps 53. Their scale is
  // an even power of two, so that the root's is whole.
  const int low = std::max(top - 2, 0);
  long double leading = 0;
  for (int i = top; i >= low; --i) {
    leading = leading * 0x1p32L + static_cast<long double>(limbs[i]);
  }
  const double root = static_cast<double>(std::sqrt(leading));
  return std::ldexp(root, (32 * low + kUnit) / 2);
}

}  // namespace cohort::backend::cpu
