#include "comm/reduce.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <type_traits>

#include "comm/reduce_float.h"

namespace cohort::comm {
namespace {

// Integers wrap: the arithmetic is done on the unsigned type. bool is one byte, 0 or 1.
template <typename T>
struct Integral {
  using Word = std::make_unsigned_t<T>;
  static T sum(T a, T b) {
    return static_cast<T>(static_cast<Word>(static_cast<Word>(a) + static_cast<Word>(b)));
  }
  static T product(T a, T b) {
    // In 64 bits: two smaller words would be promoted to int, whose overflow is undefined.
    return static_cast<T>(static_cast<Word>(std::uint64_t{static_cast<Word>(a)} *
                                            std::uint64_t{static_cast<Word>(b)}));
  }
};
struct Boolean {
  static std::uint8_t sum(std::uint8_t a, std::uint8_t b) { return a | b; }
  static std::uint8_t product(std::uint8_t a, std::uint8_t b) { return a & b; }
};

// Elements accumulated at a time: 4 KiB of the widest type, which stays in L1.
constexpr std::int64_t kChunk = 512;

template <typename T, typename Combine>
void reduce_chunks(std::span<void* const> destinations, std::span<const void* const> sources,
                   std::int64_t count, Combine combine) {
  std::array<T, kChunk> sum;
  for (std::int64_t begin = 0; begin < count; begin += kChunk) {
    const auto n = static_cast<std::size_t>(std::min(kChunk, count - begin));
    std::memcpy(sum.data(), static_cast<const T*>(sources[0]) + begin, n * sizeof(T));
    for (const void* source : sources.subspan(1)) {
      const T* values = static_cast<const T*>(source) + begin;
      for (std::size_t i = 0; i < n; ++i) sum[i] = combine(sum[i], values[i]);
    }
    for (void* destination : destinations) {
      std::memcpy(static_cast<T*>(destination) + begin, sum.data(), n * sizeof(T));
    }
  }
}

template <typename T, typename Arithmetic>
void reduce_integral(std::span<void* const> destinations, std::span<const void* const> sources,
                     std::int64_t count, ReduceOp op) {
  switch (op) {
    case ReduceOp::max:
      return reduce_chunks<T>(destinations, sources, count,
                              [](T a, T b) { return std::max(a, b); });
    case ReduceOp::min:
      return reduce_chunks<T>(destinations, sources, count,
                              [](T a, T b) { return std::min(a, b); });
    case ReduceOp::product:
      return reduce_chunks<T>(destinations, sources, count, Arithmetic::product);
    case ReduceOp::sum:
    case ReduceOp::mean:
      break;
  }
  reduce_chunks<T>(destinations, sources, count, Arithmetic::sum);
}

}  // namespace

Finish finish_for(ReduceOp op, double scale, int ranks) {
  if (op != ReduceOp::mean) {
    return scale == 1 ? Finish{} : Finish{Finish::Kind::multiply, scale};
  }
  // A power of two divides exactly, so that multiplying by its inverse, which is faster, gives the
  // same bits.
  if (ranks == 1 && scale == 1) return {};
  if (scale == 1 && !std::has_single_bit(static_cast<unsigned>(ranks))) {
    return {Finish::Kind::divide, static_cast<double>(ranks)};
  }
  return {Finish::Kind::multiply, scale / ranks};
}

void reduce(std::span<void* const> destinations, std::span<const void* const> sources,
            std::int64_t count, DType dtype, ReduceOp op, const Finish& finish) {
  switch (dtype) {
    case DType::f32:
    case DType::f64:
    case DType::bf16:
    case DType::f16:
      return reduce_float(destinations, sources, count, dtype, op, finish);
    case DType::i32:
      return reduce_integral<std::int32_t, Integral<std::int32_t>>(destinations, sources, count,
                                                                   op);
    case DType::i64:
      return reduce_integral<std::int64_t, Integral<std::int64_t>>(destinations, sources, count,
                                                                   op);
    case DType::u8:
      return reduce_integral<std::uint8_t, Integral<std::uint8_t>>(destinations, sources, count,
                                                                   op);
    case DType::boolean:
      return reduce_integral<std::uint8_t, Boolean>(destinations, sources, count, op);
  }
}

DType partial_dtype(DType dtype) {
  return dtype == DType::bf16 || dtype == DType::f16 ? DType::f32 : dtype;
}

void reduce_to_partial(void* destination, std::span<const void* const> sources, std::int64_t count,
                       DType dtype, ReduceOp op) {
  if (partial_dtype(dtype) == dtype) {
    reduce({&destination, 1}, sources, count, dtype, op, {});
  } else {
    reduce_half_to_float(destination, sources, count, dtype, op);
  }
}

void reduce_partials(void* destination, std::span<const void* const> partials, std::int64_t count,
                     DType dtype, ReduceOp op, const Finish& finish) {
  if (partial_dtype(dtype) == dtype) {
    reduce({&destination, 1}, partials, count, dtype, op, finish);
  } else {
    reduce_float_to_half(destination, partials, count, dtype, op, finish);
  }
}

}  // namespace cohort::comm
