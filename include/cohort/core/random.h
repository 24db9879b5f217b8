#pragma once

#include <array>
#include <cstdint>

namespace cohort {

// Philox-4x32-10 (Salmon, Moraes, Dror, Shaw: Parallel Random Numbers: As Easy as 1, 2, 3, 2011):
// a keyed bijection of a 128-bit counter. Any element's numbers can be computed alone, so a tensor
// has the same ones on any device and in any order of evaluation.
struct Philox {
  using Counter = std::array<std::uint32_t, 4>;

  // The four 32-bit numbers of `counter` under `key`.
  static constexpr Counter generate(std::uint64_t key, Counter counter) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key);
    std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      const std::uint64_t p0 = std::uint64_t{0xD2511F53u} * counter[0];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57u} * counter[2];
      counter = {
          static_cast<std::uint32_t>(p1 >> 32) ^ counter[1] ^ k0, static_cast<std::uint32_t>(p1),
          static_cast<std::uint32_t>(p0 >> 32) ^ counter[3] ^ k1, static_cast<std::uint32_t>(p0)};
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return counter;
  }
};

// Where a random operation takes its numbers: element i of it uses lane i % 4 of the counter
// {offset + i / 4, subsequence} under the key `seed`.
struct PhiloxState {
  std::uint64_t seed = 0;
  std::uint64_t subsequence = 0;
  std::uint64_t offset = 0;

  // The 32 random bits of element `i`.
  constexpr std::uint32_t bits(std::uint64_t i) const { return block(i / 4)[i % 4]; }
  // The four 32-bit numbers of elements 4 * `index` to 4 * `index` + 3.
  constexpr Philox::Counter block(std::uint64_t index) const {
    const std::uint64_t low = offset + index;
    return Philox::generate(
        seed,
        {static_cast<std::uint32_t>(low), static_cast<std::uint32_t>(low >> 32),
         static_cast<std::uint32_t>(subsequence), static_cast<std::uint32_t>(subsequence >> 32)});
  }
};

// A uniform float in [0, 1) from 32 bits, of which it uses the upper 24.
constexpr float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24f;
}

// A stream of random numbers: a seed, a subsequence (a rank's number, where ranks must differ) and
// a position. Belongs to one thread at a time; cheap to copy, and a copy replays the same numbers.
class Generator {
 public:
  explicit Generator(std::uint64_t seed = 0, std::uint64_t subsequence = 0)
      : state_{seed, subsequence, 0} {}

  // Reserves numbers for `elements` elements and returns where they start.
  PhiloxState reserve(std::uint64_t elements) {
    const PhiloxState start = state_;
    state_.offset += (elements + 3) / 4;
    return start;
  }

  const PhiloxState& state() const { return state_; }
  void set_state(const PhiloxState& state) { state_ = state; }

 private:
  PhiloxState state_;
};

}  // namespace cohort
