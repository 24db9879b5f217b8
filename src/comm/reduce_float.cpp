#include "comm/reduce_float.h"

#include <cstring>

#include "backend/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "comm/reduce_float.cpp"
#include <hwy/foreach_target.h>  // compiles this file once per instruction set
// After foreach_target.
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace cohort::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

// How each dtype is loaded into, and rounded from, the vectors its sums are made in. `Item` is what
// lies in memory.
struct F32 {
  using Sum = float;
  using Item = float;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Item* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, Item* to) {
    hn::StoreU(value, d, to);
  }
};

struct F64 {
  using Sum = double;
  using Item = double;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Item* from) {
    return hn::LoadU(d, from);
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, Item* to) {
    hn::StoreU(value, d, to);
  }
};

// The arithmetic of core/half.h, whose comments explain it, so that bits are equal on every CPU.
struct BF16 {
  using Sum = float;
  using Item = std::uint16_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Item* from) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(wide, hn::LoadU(narrow, from))));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<D> value, Item* to) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    const auto word = hn::BitCast(wide, value);
    const auto upper = hn::ShiftRight<16>(word);
    const auto odd = hn::And(upper, hn::Set(wide, 1u));
    const auto rounded = hn::ShiftRight<16>(hn::Add(word, hn::Add(odd, hn::Set(wide, 0x7fffu))));
    const auto nan = hn::Or(upper, hn::Set(wide, 0x40u));
    const auto is_nan = hn::RebindMask(wide, hn::IsNaN(value));
    hn::StoreU(hn::TruncateTo(narrow, hn::IfThenElse(is_nan, nan, rounded)), narrow, to);
  }
};

struct F16 {
  using Sum = float;
  using Item = std::uint16_t;
  template <class D>
  static HWY_INLINE hn::Vec<D> load(D d, const Item* from) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    const auto bits = hn::PromoteTo(wide, hn::LoadU(narrow, from));
    const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(wide, 0x8000u)));
    const auto magnitude = hn::And(bits, hn::Set(wide, 0x7fffu));
    const auto moved = hn::ShiftLeft<13>(magnitude);
    const auto normal = hn::Add(moved, hn::Set(wide, 112u << 23));  // exponent bias 15 -> 127
    const auto special = hn::Or(moved, hn::Set(wide, 0x7f800000u));
    // Below 2^-14: as a float of exponent 2^-14 with the mantissa, less 2^-14.
    const auto subnormal =
        hn::BitCast(wide, hn::Sub(hn::BitCast(d, hn::Add(moved, hn::Set(wide, 113u << 23))),
                                  hn::BitCast(d, hn::Set(wide, 113u << 23))));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(wide, 0x400u)), subnormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(wide, 0x7bffu)), special, result);
    return hn::BitCast(d, hn::Or(result, sign));
  }
  template <class D>
  static HWY_INLINE void store(D d, hn::Vec<D> value, Item* to) {
    const hn::Rebind<std::uint16_t, D> narrow;
    const hn::RebindToUnsigned<D> wide;
    const auto word = hn::BitCast(wide, value);
    const auto sign = hn::And(hn::ShiftRight<16>(word), hn::Set(wide, 0x8000u));
    const auto magnitude = hn::And(word, hn::Set(wide, 0x7fffffffu));
    const auto rebiased = hn::Sub(magnitude, hn::Set(wide, 112u << 23));
    const auto odd = hn::And(hn::ShiftRight<13>(rebiased), hn::Set(wide, 1u));
    const auto normal = hn::ShiftRight<13>(hn::Add(rebiased, hn::Add(odd, hn::Set(wide, 0xfffu))));
    const auto subnormal =
        hn::Sub(hn::BitCast(wide, hn::Add(hn::BitCast(d, magnitude), hn::Set(d, 0.5f))),
                hn::Set(wide, 0x3f000000u));
    auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(wide, 0x38800000u)), subnormal, normal);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(wide, 0x477fefffu)), hn::Set(wide, 0x7c00u),
                            result);
    result = hn::IfThenElse(hn::Gt(magnitude, hn::Set(wide, 0x7f800000u)), hn::Set(wide, 0x7e00u),
                            result);
    hn::StoreU(hn::TruncateTo(narrow, hn::Or(result, sign)), narrow, to);
  }
};

struct Sum {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct Product {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Mul(a, b);
  }
};
// A NaN stays, on either side; the vector instructions themselves would drop one of them.
struct Max {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Gt(b, a), hn::IsNaN(b)), b, a);
  }
};
struct Min {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::IfThenElse(hn::Or(hn::Lt(b, a), hn::IsNaN(b)), b, a);
  }
};

template <class D>
HWY_INLINE hn::Vec<D> finish_vector(D d, hn::Vec<D> value, Finish::Kind kind, hn::TFromD<D> by) {
  if (kind == Finish::Kind::multiply) return hn::Mul(value, hn::Set(d, by));
  if (kind == Finish::Kind::divide) return hn::Div(value, hn::Set(d, by));
  return value;
}

// One block of kVectors vectors from every source, of type In, to every destination, of type Out.
template <int kVectors, class In, class Out, class Op, class D>
HWY_INLINE void reduce_block(D d, std::span<void* const> destinations,
                             std::span<const void* const> sources, std::int64_t at,
                             Finish::Kind kind, typename In::Sum by) {
  using V = hn::Vec<D>;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Op op;
  const auto* first = static_cast<const typename In::Item*>(sources[0]) + at;
  // Written out: an array of vectors is not allowed on all instruction sets.
  V v0 = In::load(d, first);
  V v1 = v0, v2 = v0, v3 = v0;
  if constexpr (kVectors == 4) {
    v1 = In::load(d, first + lanes);
    v2 = In::load(d, first + 2 * lanes);
    v3 = In::load(d, first + 3 * lanes);
  }
  for (std::size_t s = 1; s < sources.size(); ++s) {
    const auto* next = static_cast<const typename In::Item*>(sources[s]) + at;
    v0 = op(v0, In::load(d, next));
    if constexpr (kVectors == 4) {
      v1 = op(v1, In::load(d, next + lanes));
      v2 = op(v2, In::load(d, next + 2 * lanes));
      v3 = op(v3, In::load(d, next + 3 * lanes));
    }
  }
  v0 = finish_vector(d, v0, kind, by);
  if constexpr (kVectors == 4) {
    v1 = finish_vector(d, v1, kind, by);
    v2 = finish_vector(d, v2, kind, by);
    v3 = finish_vector(d, v3, kind, by);
  }
  for (void* destination : destinations) {
    auto* to = static_cast<typename Out::Item*>(destination) + at;
    Out::store(d, v0, to);
    if constexpr (kVectors == 4) {
      Out::store(d, v1, to + lanes);
      Out::store(d, v2, to + 2 * lanes);
      Out::store(d, v3, to + 3 * lanes);
    }
  }
}

// Fewer elements than a vector holds: through full vectors on the side, so that they are computed
// by the same instructions as all others.
template <class In, class Out, class Op, class D>
void reduce_tail(D d, std::span<void* const> destinations, std::span<const void* const> sources,
                 std::int64_t at, std::size_t count, Finish::Kind kind, typename In::Sum by) {
  using InItem = typename In::Item;
  using OutItem = typename Out::Item;
  HWY_ALIGN InItem next[hn::MaxLanes(D())] = {};
  HWY_ALIGN OutItem sum[hn::MaxLanes(D())] = {};
  std::memcpy(next, static_cast<const InItem*>(sources[0]) + at, count * sizeof(InItem));
  // The sum stays in a vector: a round trip through memory would round it.
  auto value = In::load(d, next);
  for (std::size_t s = 1; s < sources.size(); ++s) {
    std::memcpy(next, static_cast<const InItem*>(sources[s]) + at, count * sizeof(InItem));
    value = Op()(value, In::load(d, next));
  }
  Out::store(d, finish_vector(d, value, kind, by), sum);
  for (void* destination : destinations) {
    std::memcpy(static_cast<OutItem*>(destination) + at, sum, count * sizeof(OutItem));
  }
}

template <class In, class Out, class Op>
void reduce_all(std::span<void* const> destinations, std::span<const void* const> sources,
                std::int64_t count, const Finish& finish) {
  const hn::ScalableTag<typename In::Sum> d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto by = static_cast<typename In::Sum>(finish.by);
  std::int64_t at = 0;
  for (; at + 4 * lanes <= count; at += 4 * lanes) {
    reduce_block<4, In, Out, Op>(d, destinations, sources, at, finish.kind, by);
  }
  for (; at + lanes <= count; at += lanes) {
    reduce_block<1, In, Out, Op>(d, destinations, sources, at, finish.kind, by);
  }
  if (at < count) {
    reduce_tail<In, Out, Op>(d, destinations, sources, at, static_cast<std::size_t>(count - at),
                             finish.kind, by);
  }
}

template <class In, class Out = In>
void reduce_type(std::span<void* const> destinations, std::span<const void* const> sources,
                 std::int64_t count, ReduceOp op, const Finish& finish) {
  switch (op) {
    case ReduceOp::max:
      return reduce_all<In, Out, Max>(destinations, sources, count, finish);
    case ReduceOp::min:
      return reduce_all<In, Out, Min>(destinations, sources, count, finish);
    case ReduceOp::product:
      return reduce_all<In, Out, Product>(destinations, sources, count, finish);
    case ReduceOp::sum:
    case ReduceOp::mean:
      break;
  }
  reduce_all<In, Out, Sum>(destinations, sources, count, finish);
}

void reduce_float_on_target(std::span<void* const> destinations,
                            std::span<const void* const> sources, std::int64_t count, DType dtype,
                            ReduceOp op, const Finish& finish) {
  switch (dtype) {
    case DType::f64:
      return reduce_type<F64>(destinations, sources, count, op, finish);
    case DType::bf16:
      return reduce_type<BF16>(destinations, sources, count, op, finish);
    case DType::f16:
      return reduce_type<F16>(destinations, sources, count, op, finish);
    default:
      return reduce_type<F32>(destinations, sources, count, op, finish);
  }
}

void widen_half_on_target(void* destination, std::span<const void* const> sources,
                          std::int64_t count, DType dtype, ReduceOp op) {
  if (dtype == DType::bf16) {
    reduce_type<BF16, F32>({&destination, 1}, sources, count, op, {});
  } else {
    reduce_type<F16, F32>({&destination, 1}, sources, count, op, {});
  }
}

void narrow_half_on_target(void* destination, std::span<const void* const> sources,
                           std::int64_t count, DType dtype, ReduceOp op, const Finish& finish) {
  if (dtype == DType::bf16) {
    reduce_type<F32, BF16>({&destination, 1}, sources, count, op, finish);
  } else {
    reduce_type<F32, F16>({&destination, 1}, sources, count, op, finish);
  }
}

}  // namespace cohort::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace cohort::comm {

HWY_EXPORT(reduce_float_on_target);
HWY_EXPORT(widen_half_on_target);
HWY_EXPORT(narrow_half_on_target);

void reduce_float(std::span<void* const> destinations, std::span<const void* const> sources,
                  std::int64_t count, DType dtype, ReduceOp op, const Finish& finish) {
  HWY_DYNAMIC_DISPATCH(reduce_float_on_target)(destinations, sources, count, dtype, op, finish);
}

void reduce_half_to_float(void* destination, std::span<const void* const> sources,
                          std::int64_t count, DType dtype, ReduceOp op) {
  HWY_DYNAMIC_DISPATCH(widen_half_on_target)(destination, sources, count, dtype, op);
}

void reduce_float_to_half(void* destination, std::span<const void* const> sources,
                          std::int64_t count, DType dtype, ReduceOp op, const Finish& finish) {
  HWY_DYNAMIC_DISPATCH(narrow_half_on_target)(destination, sources, count, dtype, op, finish);
}

}  // namespace cohort::comm
#endif
