// Element-wise operations on integers, in i64. Sums and products wrap around, so that they are done
// on unsigned words.

#include <algorithm>
#include <limits>

#include "backend/cpu/elementwise_maps.h"

namespace cohort::backend::cpu {
namespace {

using Int = std::int64_t;
using Word = std::uint64_t;

// A number of ScalarParams, whole or infinite.
Int whole(double value) {
  if (value >= 0x1p63) return std::numeric_limits<Int>::max();
  return value > -0x1p63 ? static_cast<Int>(value) : std::numeric_limits<Int>::min();
}

template <int N, class F>
void map(Int* out, const Operand<Int>* in, std::size_t count, ScalarParams params) {
  const Int p = whole(params.p);
  const auto at = [&](int k, std::size_t i) {
    return in[k].data[static_cast<Int>(i) * in[k].step];
  };
  for (std::size_t i = 0; i < count; ++i) {
    if constexpr (N == 1) {
      out[i] = F{}(p, at(0, i));
    } else if constexpr (N == 2) {
      out[i] = F{}(p, at(0, i), at(1, i));
    } else {
      out[i] = F{}(p, at(0, i), at(1, i), at(2, i));
    }
  }
}

template <int N, class F>
MapFn<Int> make_map(F) {
  return map<N, F>;
}

Int wrap(Word word) {
  return static_cast<Int>(word);
}
Int add(Int x, Int y) {
  return wrap(static_cast<Word>(x) + static_cast<Word>(y));
}
Int mul(Int x, Int y) {
  return wrap(static_cast<Word>(x) * static_cast<Word>(y));
}
Int negate(Int x) {
  return wrap(Word{0} - static_cast<Word>(x));
}

Int power(Int base, Int exponent) {
  Int result = 1;
  for (; exponent > 0; exponent >>= 1, base = mul(base, base)) {
    if (exponent & 1) result = mul(result, base);
  }
  return result;
}

void clamp(Int* out, const Operand<Int>* in, std::size_t count, ScalarParams params) {
  const Int low = whole(params.p);
  const Int high = whole(params.q);
  for (std::size_t i = 0; i < count; ++i) {
    const Int x = in[0].data[static_cast<Int>(i) * in[0].step];
    out[i] = x < low ? low : (x > high ? high : x);
  }
}

}  // namespace

MapFn<Int> find_unary_i64(UnaryOp op, ScalarParams) {
  switch (op) {
    case UnaryOp::identity:
      return make_map<1>([](Int, Int x) { return x; });
    case UnaryOp::neg:
      return make_map<1>([](Int, Int x) { return negate(x); });
    case UnaryOp::abs:
      return make_map<1>([](Int, Int x) { return x < 0 ? negate(x) : x; });
    case UnaryOp::add_scalar:
      return make_map<1>([](Int p, Int x) { return add(x, p); });
    case UnaryOp::mul_scalar:
      return make_map<1>([](Int p, Int x) { return mul(x, p); });
    case UnaryOp::clamp:
      return clamp;
    case UnaryOp::pow:
      return make_map<1>([](Int p, Int x) { return power(x, p); });
    case UnaryOp::relu:
      return make_map<1>([](Int, Int x) { return std::max<Int>(x, 0); });
    case UnaryOp::isfinite:
      return make_map<1>([](Int, Int) { return Int{1}; });
    default:
      return nullptr;
  }
}

MapFn<Int> find_binary_i64(BinaryOp op, ScalarParams) {
  switch (op) {
    case BinaryOp::add:
      return make_map<2>([](Int, Int x, Int y) { return add(x, y); });
    case BinaryOp::sub:
      return make_map<2>([](Int, Int x, Int y) { return add(x, negate(y)); });
    case BinaryOp::mul:
      return make_map<2>([](Int, Int x, Int y) { return mul(x, y); });
    case BinaryOp::maximum:
      return make_map<2>([](Int, Int x, Int y) { return std::max(x, y); });
    case BinaryOp::minimum:
      return make_map<2>([](Int, Int x, Int y) { return std::min(x, y); });
    case BinaryOp::add_scaled:
      return make_map<2>([](Int p, Int x, Int y) { return add(x, mul(p, y)); });
    case BinaryOp::equal:
      return make_map<2>([](Int, Int x, Int y) { return Int{x == y}; });
    case BinaryOp::not_equal:
      return make_map<2>([](Int, Int x, Int y) { return Int{x != y}; });
    case BinaryOp::less:
      return make_map<2>([](Int, Int x, Int y) { return Int{x < y}; });
    case BinaryOp::less_equal:
      return make_map<2>([](Int, Int x, Int y) { return Int{x <= y}; });
    case BinaryOp::greater:
      return make_map<2>([](Int, Int x, Int y) { return Int{x > y}; });
    case BinaryOp::greater_equal:
      return make_map<2>([](Int, Int x, Int y) { return Int{x >= y}; });
    case BinaryOp::keep_if:
      return make_map<2>([](Int, Int x, Int y) { return y != 0 ? x : 0; });
    case BinaryOp::keep_if_not:
      return make_map<2>([](Int, Int x, Int y) { return y != 0 ? 0 : x; });
    default:
      return nullptr;
  }
}

MapFn<Int> find_ternary_i64(TernaryOp op) {
  if (op != TernaryOp::where) return nullptr;
  return make_map<3>([](Int, Int x, Int y, Int z) { return x != 0 ? y : z; });
}

}  // namespace cohort::backend::cpu
