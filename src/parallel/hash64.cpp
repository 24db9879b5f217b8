#include "parallel/hash64.h"

#include <bit>
#include <cstring>

namespace cohort::parallel {
namespace {

static_assert(std::endian::native == std::endian::little, "words are read as they lie");

constexpr std::uint64_t kPrime1 = 11400714785074694791u;
constexpr std::uint64_t kPrime2 = 14029467366897019727u;
constexpr std::uint64_t kPrime3 = 1609587929392839161u;
constexpr std::uint64_t kPrime4 = 9650029242287828579u;
constexpr std::uint64_t kPrime5 = 2870177450012600261u;

template <typename Word>
std::uint64_t read(const std::byte* at) {
  Word word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}

std::uint64_t round(std::uint64_t lane, std::uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

std::uint64_t merge(std::uint64_t hash, std::uint64_t lane) {
  return (hash ^ round(0, lane)) * kPrime1 + kPrime4;
}

// Four lanes of 8 bytes, so that their multiplications overlap; `at` moves behind them.
std::uint64_t hash_stripes(const std::byte*& at, const std::byte* end, std::uint64_t seed) {
  std::uint64_t a = seed + kPrime1 + kPrime2;
  std::uint64_t b = seed + kPrime2;
  std::uint64_t c = seed;
  std::uint64_t d = seed - kPrime1;
  for (; end - at >= 32; at += 32) {
    a = round(a, read<std::uint64_t>(at));
    b = round(b, read<std::uint64_t>(at + 8));
    c = round(c, read<std::uint64_t>(at + 16));
    d = round(d, read<std::uint64_t>(at + 24));
  }
  const std::uint64_t hash =
      std::rotl(a, 1) + std::rotl(b, 7) + std::rotl(c, 12) + std::rotl(d, 18);
  return merge(merge(merge(merge(hash, a), b), c), d);
}

}  // namespace

std::uint64_t hash64(const void* bytes, std::size_t count, std::uint64_t seed) {
  const auto* at = static_cast<const std::byte*>(bytes);
  const std::byte* const end = at + count;
  std::uint64_t hash = count >= 32 ? hash_stripes(at, end, seed) : seed + kPrime5;
  hash += count;
  for (; end - at >= 8; at += 8) {
    hash = std::rotl(hash ^ round(0, read<std::uint64_t>(at)), 27) * kPrime1 + kPrime4;
  }
  if (end - at >= 4) {
    hash = std::rotl(hash ^ read<std::uint32_t>(at) * kPrime1, 23) * kPrime2 + kPrime3;
    at += 4;
  }
  for (; at != end; ++at) {
    hash = std::rotl(hash ^ read<std::uint8_t>(at) * kPrime5, 11) * kPrime1;
  }
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

}  // namespace cohort::parallel
