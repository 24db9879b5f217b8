#pragma once

// Which instruction sets the hot loops are compiled for: the baseline, AVX2 and AVX-512 on x86,
// NEON on Arm. What lies between adds compile time and no speed; scalable vectors cannot be held in
// arrays, as the tiles of the GEMM are. Include it before hwy/foreach_target.h.
#include <hwy/detect_targets.h>

#undef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
