#include "comm/stream_copy.h"

#include <cstddef>
#include <cstring>

#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/stream_copy.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target.
#include <hwy/cache_control.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

void stream_on_target(void* to, const void* from, std::int64_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  auto* target = static_cast<std::uint8_t*>(to);
  const auto* source = static_cast<const std::uint8_t*>(from);
  // Streaming stores are of whole aligned vectors.
  const auto misaligned = static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(to) %
                                                    static_cast<std::uintptr_t>(lanes));
  std::int64_t at = misaligned == 0 ? 0 : lanes - misaligned;
  std::memcpy(target, source, static_cast<std::size_t>(at));
  // Four at a time: a line of 64 bytes is complete at once, whatever the width.
  for (; at + 4 * lanes <= bytes; at += 4 * lanes) {
    const auto a = hn::LoadU(d, source + at);
    const auto b = hn::LoadU(d, source + at + lanes);
    const auto c = hn::LoadU(d, source + at + 2 * lanes);
    const auto e = hn::LoadU(d, source + at + 3 * lanes);
    hn::Stream(a, d, target + at);
    hn::Stream(b, d, target + at + lanes);
    hn::Stream(c, d, target + at + 2 * lanes);
    hn::Stream(e, d, target + at + 3 * lanes);
  }
  hwy::FlushStream();
  std::memcpy(target + at, source + at, static_cast<std::size_t>(bytes - at));
}

}  // namespace cohort::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::comm {
namespace {

// Below, what is written stays in the second-level cache until it is read.
constexpr std::int64_t kStreamBytes = std::int64_t{256} << 10;

}  // namespace

HWY_EXPORT(stream_on_target);

void stream_copy(void* to, const void* from, std::int64_t bytes) {
  if (bytes < kStreamBytes) {
    if (bytes > 0) std::memcpy(to, from, static_cast<std::size_t>(bytes));
  } else {
    HWY_DYNAMIC_DISPATCH(stream_on_target)(to, from, bytes);
  }
}

}  // namespace cohort::comm
#endif
