// Which instruction sets Highway compiles for; include before any of its headers. Each costs
// compile time, so that only steps that pay are kept: the build's baseline, AVX2 with FMA, AVX-512.
// Vectors of unknown length (SVE, RISC-V) are left out: kernels keep arrays of vectors.
#pragma once

#define HWY_DISABLED_TARGETS \
  (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128 | HWY_RVV)
