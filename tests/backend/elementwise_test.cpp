// The kernels on every instruction set that this machine has: accuracy, and that an element's bits
// do not depend on where it lies.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "backend/backend.h"
#include "backend/elementwise_kernels.h"
#include "cohort/core/context.h"
#include "support/instruction_sets.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort::backend {
namespace {

const ElementwiseKernels& kernels() {
  return cpu_backend().elementwise();
}
const Stream& stream() {
  return Context::current().stream(Device::cpu());
}

class ElementwiseKernel : public test::OnEveryInstructionSet {};
INSTANTIATE_TEST_SUITE_P(Targets, ElementwiseKernel, testing::ValuesIn(test::instruction_sets()),
                         test::instruction_set_name);

Tensor map(UnaryOp op, const Tensor& x, ScalarParams params = {}) {
  Tensor out = Tensor::empty(x.shape(), x.options());
  kernels().unary(stream(), op, out, x, params);
  return out;
}

// Distance in units of the last place of T at `want`.
template <typename T>
double ulps(T got, long double want) {
  const T rounded = static_cast<T>(want);
  if (got == rounded) return 0;
  const T next = std::nextafter(std::abs(rounded), std::numeric_limits<T>::infinity());
  return static_cast<double>(std::abs(got - want) /
                             (static_cast<long double>(next) - std::abs(rounded)));
}

struct Accuracy {
  UnaryOp op;
  std::function<long double(long double)> exact;
  double low;
  double high;
  double ulps_f32;
  double ulps_f64;
};

long double normal(long double x) {
  return 0.5L * std::erfc(-x * 0.70710678118654752440L);
}

std::vector<Accuracy> accuracies() {
  using Number = long double;
  const auto sigmoid = [](Number x) { return 1 / (1 + std::exp(-x)); };
  return {
      {UnaryOp::exp, [](Number x) { return std::exp(x); }, -87, 88.7, 1.5, 1.5},
      {UnaryOp::exp, [](Number x) { return std::exp(x); }, -700, 709.7, HUGE_VAL, 3.5},
      {UnaryOp::log, [](Number x) { return std::log(x); }, 1e-3, 3, 4, 4},
      {UnaryOp::log, [](Number x) { return std::log(x); }, 3, 1e30, 4, 4},
      {UnaryOp::tanh, [](Number x) { return std::tanh(x); }, -10, 10, 4, 4},
      {UnaryOp::sin, [](Number x) { return std::sin(x); }, -100, 100, 3, 3},
      {UnaryOp::cos, [](Number x) { return std::cos(x); }, -100, 100, 3, 3},
      {UnaryOp::sin, [](Number x) { return std::sin(x); }, -1e6, 1e6, 3, 3},
      {UnaryOp::sigmoid, sigmoid, -80, 80, 3, 3},
      {UnaryOp::silu, [=](Number x) { return x * sigmoid(x); }, -80, 80, 4, 4},
      {UnaryOp::gelu, [](Number x) { return x * normal(x); }, -2, 12, 7, 7},
      // The tail is a function of x^2, whose rounding error it magnifies x^2 / 2 times; in f32 FMA
      // makes up for it.
      {UnaryOp::gelu, [](Number x) { return x * normal(x); }, -12, -2, 80, 250},
      {UnaryOp::sqrt, [](Number x) { return std::sqrt(x); }, 0, 1e9, 0.51, 0.51},
  };
}

template <typename T>
void expect_accurate(const Accuracy& accuracy, double bound) {
  constexpr int kCount = 20001;
  std::vector<T> numbers(kCount);
  for (int i = 0; i < kCount; ++i) {
    numbers[static_cast<std::size_t>(i)] =
        static_cast<T>(accuracy.low + (accuracy.high - accuracy.low) * i / (kCount - 1));
  }
  const auto got = map(accuracy.op, Tensor::from(numbers, {kCount})).template to_vector<T>();
  double worst = 0;
  T where = 0;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const double error = ulps(got[i], accuracy.exact(numbers[i]));
    if (!(error <= worst)) {
      worst = error;
      where = numbers[i];
    }
  }
  EXPECT_LE(worst, bound) << "operation " << static_cast<int>(accuracy.op) << " at " << where;
}

TEST_P(ElementwiseKernel, FunctionsAreAsAccurateAsTheyClaim) {
  for (const Accuracy& accuracy : accuracies()) {
    if (accuracy.ulps_f32 != HUGE_VAL) expect_accurate<float>(accuracy, accuracy.ulps_f32);
    expect_accurate<double>(accuracy, accuracy.ulps_f64);
  }
}

constexpr int kUnaryOps = static_cast<int>(UnaryOp::isfinite) + 1;
constexpr int kBinaryOps = static_cast<int>(BinaryOp::pow_grad) + 1;

// `count` elements of `x` from `first`, `step` apart.
Tensor window(const Tensor& x, std::int64_t first, std::int64_t count, std::int64_t step) {
  return x.as_strided({count}, {step}, first);
}

TEST_P(ElementwiseKernel, BitsDoNotDependOnPositionLengthOrStride) {
  constexpr std::int64_t kCount = 150;
  const ScalarParams params{.p = 1.3, .q = 1.7};
  for (const DType dtype : {f32, f64, bf16, f16}) {
    const Tensor x = Tensor::empty({kCount}, {dtype}).copy_(test::values({kCount}, f32));
    const Tensor y = Tensor::empty({kCount}, {dtype}).copy_(test::values({kCount}, f32, 2));
    for (int op = 0; op < kUnaryOps + kBinaryOps; ++op) {
      const auto run = [&](const Tensor& a, const Tensor& b, const Tensor& out) {
        if (op < kUnaryOps) {
          kernels().unary(stream(), static_cast<UnaryOp>(op), out, a, params);
        } else {
          kernels().binary(stream(), static_cast<BinaryOp>(op - kUnaryOps), out, a, b, params);
        }
      };
      const Tensor whole = Tensor::empty({kCount}, {dtype});
      run(x, y, whole);
      for (const std::int64_t first : {0, 1, 3, 5, 13}) {
        for (const std::int64_t count : {1, 2, 7, 15, 16, 17, 33, 64, 100}) {
          const Tensor out = Tensor::zeros({kCount}, {dtype});
          run(window(x, first, count, 1), window(y, first, count, 1), window(out, 2, count, 1));
          ASSERT_TRUE(test::same_bits(window(out, 2, count, 1), window(whole, first, count, 1)))
              << "operation " << op << ' ' << dtype << " from " << first << ", " << count;
        }
      }
      const Tensor out = Tensor::zeros({kCount}, {dtype});
      run(window(x, 1, 50, 2), window(y, 1, 50, 2), window(out, 0, 50, 3));
      ASSERT_TRUE(test::same_bits(window(out, 0, 50, 3), window(whole, 1, 50, 2))) << op;
    }
  }
}

TEST_P(ElementwiseKernel, RepeatedOperandsAreReadAsIfTheyWereWrittenOut) {
  const Tensor x = test::values({3, 4, 5}, f32);
  for (const Dims& strides : {Dims{0, 5, 1}, Dims{20, 0, 1}, Dims{20, 5, 0}, Dims{0, 0, 0},
                              Dims{0, 1, 0}, Dims{1, 0, 0}}) {
    for (const DType dtype : {f32, bf16, i32}) {
      const Tensor base = Tensor::empty({3, 4, 5}, {dtype}).copy_(test::values({3, 4, 5}, f32, 9));
      const Tensor repeated = base.as_strided({3, 4, 5}, strides, 0);
      const Tensor written = Tensor::empty({3, 4, 5}, {dtype}).copy_(repeated);
      const Tensor a = Tensor::empty({3, 4, 5});
      const Tensor b = Tensor::empty({3, 4, 5});
      kernels().binary(stream(), BinaryOp::sub, a, x, repeated, {});
      kernels().binary(stream(), BinaryOp::sub, b, x, written, {});
      EXPECT_TRUE(test::same_bits(a, b));
      kernels().binary(stream(), BinaryOp::div, a, repeated, x, {});
      kernels().binary(stream(), BinaryOp::div, b, written, x, {});
      EXPECT_TRUE(test::same_bits(a, b));
    }
  }
}

TEST_P(ElementwiseKernel, AccumulatesAnyDtypeIntoAnyOther) {
  for (const DType to : {f32, f64, bf16, f16, i64}) {
    for (const DType from : {f32, f64, bf16, f16, i32}) {
      const Tensor sum = Tensor::full({3, 5}, 2, {to}).as_strided({5, 3}, {1, 5}, 0);
      const Tensor term = Tensor::full({5, 3}, 3, {from});
      kernels().accumulate(stream(), sum, term);
      EXPECT_EQ(sum.to_vector<double>(), std::vector<double>(15, 5)) << to << ' ' << from;
    }
  }
}

TEST_P(ElementwiseKernel, LowPrecisionIsComputedInF32AndRoundedOnce) {
  // In bf16 the product alone would be rounded before the sum.
  const Tensor x = Tensor::full({40}, 1.0078125, {bf16});
  const Tensor out = Tensor::empty({40}, {bf16});
  kernels().binary(stream(), BinaryOp::add_scaled, out, x, x, {.p = 1.0078125});
  const float want = BFloat16(1.0078125f + 1.0078125f * 1.0078125f);
  EXPECT_EQ(out.to_vector<float>(), std::vector<float>(40, want));
}

TEST(IntegerKernel, RefusesFunctionsOfIntegersAtTheCall) {
  const Tensor x = Tensor::zeros({2}, {i64});
  EXPECT_THROW(kernels().unary(stream(), UnaryOp::exp, x, x, {}), NotSupported);
}

// f64 as the middle value holds every one of these exactly.
TEST_P(ElementwiseKernel, CopiesBetweenAllDtypesAndStrides) {
  const std::vector<double> numbers = {0, 1, 2, 100, 17, 64, 0, 1, 3, 5, 127, 96};
  for (int from = 0; from < kDTypeCount; ++from) {
    for (int to = 0; to < kDTypeCount; ++to) {
      const DType in_dtype = static_cast<DType>(from);
      const DType out_dtype = static_cast<DType>(to);
      const bool truth = in_dtype == boolean || out_dtype == boolean;
      const Tensor in = Tensor::empty({3, 4}, {in_dtype}).copy_(Tensor::from(numbers, {3, 4}));
      const Tensor out = Tensor::zeros({4, 3}, {out_dtype});
      kernels().copy(stream(), out, in.as_strided({4, 3}, {1, 4}, 0));
      const auto got = out.to_vector<double>();
      for (std::size_t i = 0; i < 12; ++i) {
        const double number = numbers[i % 3 * 4 + i / 3];
        EXPECT_EQ(got[i], truth ? (number != 0 ? 1 : 0) : number) << in_dtype << out_dtype;
      }
    }
  }
}

TEST(CopyKernel, TransposesLargeMatricesOfEveryItemSize) {
  for (const DType dtype : {u8, f16, f32, f64}) {
    const Tensor in = Tensor::arange(2 * 70 * 101, {.dtype = i64}).to(dtype);
    const Tensor out = Tensor::empty({2, 101, 70}, {dtype});
    kernels().copy(stream(), out, in.as_strided({2, 101, 70}, {70 * 101, 1, 101}, 0));
    const auto given = in.to_vector<double>();
    const auto got = out.to_vector<double>();
    for (std::size_t b = 0; b < 2; ++b) {
      for (std::size_t r = 0; r < 101; ++r) {
        for (std::size_t c = 0; c < 70; ++c) {
          ASSERT_EQ(got[(b * 101 + r) * 70 + c], given[(b * 70 + c) * 101 + r]);
        }
      }
    }
  }
}

TEST(CopyKernel, FillsStridedWindowsAndNothingElse) {
  for (int i = 0; i < kDTypeCount; ++i) {
    const auto dtype = static_cast<DType>(i);
    const Tensor base = Tensor::zeros({6, 6}, {dtype});
    kernels().fill(stream(), base.as_strided({2, 3}, {18, 2}, 1), 1);
    const auto got = base.to_vector<double>();
    for (std::size_t at = 0; at < 36; ++at) {
      const bool inside = (at / 6 == 0 || at / 6 == 3) && at % 2 == 1;
      EXPECT_EQ(got[at], inside ? 1 : 0) << dtype << ' ' << at;
    }
  }
}

}  // namespace
}  // namespace cohort::backend
