#pragma once

#include <cstddef>
#include <cstdint>

namespace cohort::parallel {

// XXH64 (Yann Collet's xxHash, 64 bits): some 10 GB/s, and two byte strings that differ share a
// hash once in 2^64 unless somebody looks for such a pair. The same on every machine.
std::uint64_t hash64(const void* bytes, std::size_t count, std::uint64_t seed = 0);

}  // namespace cohort::parallel
