// Fill, copy and accumulate. Contiguous operands move in vectors of 16 bytes, the widest access of
// a thread; others one element at a time. Both ways compute an element alike, so that its bits do
// not depend on where it lies.

#include "backend/cuda/convert.h"
#include "backend/cuda/families.h"
#include "backend/cuda/launch.h"
#include "backend/cuda/walk.h"

namespace cohort::backend::cuda {
namespace {

constexpr std::int64_t kPackBytes = 16;

template <typename T>
struct alignas(kPackBytes) Pack {
  static constexpr std::int64_t kSize = kPackBytes / static_cast<std::int64_t>(sizeof(T));
  T values[kSize];
};

bool is_pack_aligned(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % kPackBytes == 0;
}

// Calls fn with an unsigned word of `item` bytes.
template <typename F>
void with_word(std::size_t item, F&& fn) {
  switch (item) {
    case 1:
      return fn(std::uint8_t{});
    case 2:
      return fn(std::uint16_t{});
    case 4:
      return fn(std::uint32_t{});
    default:
      return fn(std::uint64_t{});
  }
}

// Numbered as AddPacks is.
template <typename Word>
struct FillPacks {
  Word* out;
  std::int64_t packs;
  Word word;

  __device__ void operator()(std::int64_t i) const {
    if (i >= packs) {
      out[packs * Pack<Word>::kSize + (i - packs)] = word;
      return;
    }
    Pack<Word> values;
    for (int k = 0; k < Pack<Word>::kSize; ++k) values.values[k] = word;
    reinterpret_cast<Pack<Word>*>(out)[i] = values;
  }
};

template <typename Word>
struct FillEach {
  Walk<1> walk;
  Word word;

  __device__ void operator()(std::int64_t i) const {
    std::byte* at[1];
    walk.locate(i, at);
    *reinterpret_cast<Word*>(at[0]) = word;
  }
};

// Copies of equal dtype move words and never look at values.
template <typename Word>
struct CopyEach {
  Walk<2> walk;

  __device__ void operator()(std::int64_t i) const {
    std::byte* at[2];
    walk.locate(i, at);
    *reinterpret_cast<Word*>(at[0]) = *reinterpret_cast<const Word*>(at[1]);
  }
};

// T holds both dtypes, as on every device.
template <typename T>
struct ConvertEach {
  Walk<2> walk;

  __device__ void operator()(std::int64_t i) const {
    std::byte* at[2];
    walk.locate(i, at);
    store(at[0], walk.dtype[0], load<T>(at[1], walk.dtype[1]));
  }
};

// The sum of two elements in T, rounded once. Integers wrap around.
template <typename T>
__device__ T sum_of(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
  } else {
    return a + b;
  }
}

template <typename T>
struct AccumulateEach {
  Walk<2> walk;

  __device__ void operator()(std::int64_t i) const {
    std::byte* at[2];
    walk.locate(i, at);
    const T sum = sum_of(load<T>(at[0], walk.dtype[0]), load<T>(at[1], walk.dtype[1]));
    store(at[0], walk.dtype[0], sum);
  }
};

// Elements of one floating dtype, summed in its compute type.
template <typename T>
__device__ T add_elements(T a, T b) {
  using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;
  return convert<T>(sum_of(convert<Sum>(a), convert<Sum>(b)));
}

// Numbers 0 … packs - 1 are whole packs, the rest are the elements behind them.
template <typename T>
struct AddPacks {
  T* out;
  const T* in;
  std::int64_t packs;

  __device__ void operator()(std::int64_t i) const {
    if (i >= packs) {
      const std::int64_t at = packs * Pack<T>::kSize + (i - packs);
      out[at] = add_elements(out[at], in[at]);
      return;
    }
    const Pack<T> more = reinterpret_cast<const Pack<T>*>(in)[i];
    Pack<T> sum = reinterpret_cast<const Pack<T>*>(out)[i];
    for (int k = 0; k < Pack<T>::kSize; ++k) {
      sum.values[k] = add_elements(sum.values[k], more.values[k]);
    }
    reinterpret_cast<Pack<T>*>(out)[i] = sum;
  }
};

template <typename F>
void with_compute_type(DType a, DType b, F&& fn) {
  switch (compute_dtype(a, b)) {
    case DType::f64:
      return fn(double{});
    case DType::i64:
      return fn(std::int64_t{});
    default:
      return fn(float{});
  }
}

// The bits of `value` as an element of `dtype`.
std::uint64_t element_bits(double value, DType dtype) {
  std::uint64_t bits = 0;
  store(reinterpret_cast<std::byte*>(&bits), dtype, value);
  return bits;
}

// Whole packs and the elements behind them.
template <typename T>
std::int64_t packs_and_rest(std::int64_t numel) {
  return numel / Pack<T>::kSize + numel % Pack<T>::kSize;
}

// Adds in packs where the operands allow it; tells whether they did.
template <typename T>
bool add_packs(const Stream& stream, const View& out, const View& in) {
  if (out.dtype != dtype_of<T> || in.dtype != dtype_of<T> || !out.contiguous || !in.contiguous ||
      !is_pack_aligned(out.data) || !is_pack_aligned(in.data)) {
    return false;
  }
  const AddPacks<T> body{out.as<T>(), in.as<T>(), out.numel / Pack<T>::kSize};
  const std::int64_t count = packs_and_rest<T>(out.numel);
  stream.launch([=, at = handle_of(stream)] { launch_each(at, count, body, "accumulate"); });
  return true;
}

class CudaElementwise final : public ElementwiseKernels {
 public:
  void fill(const Stream& stream, const View& out, double value) const override {
    const StreamHandle at = handle_of(stream);
    with_word(item_size(out.dtype), [&](auto zero) {
      using Word = decltype(zero);
      const auto word = static_cast<Word>(element_bits(value, out.dtype));
      if (out.contiguous && is_pack_aligned(out.data)) {
        const FillPacks<Word> body{out.as<Word>(), out.numel / Pack<Word>::kSize, word};
        const std::int64_t count = packs_and_rest<Word>(out.numel);
        stream.launch([=] { launch_each(at, count, body, "fill"); });
      } else {
        const FillEach<Word> body{make_walk<1>({&out}), word};
        stream.launch([=, count = out.numel] { launch_each(at, count, body, "fill"); });
      }
    });
  }

  void copy(const Stream& stream, const View& out, const View& in) const override {
    if (out.dtype != in.dtype) return convert_each(stream, out, in);
    if (out.contiguous && in.contiguous) {
      const std::size_t item = item_size(out.dtype);
      return cuda_backend().copy_bytes(stream, out.data, in.data,
                                       static_cast<std::size_t>(out.numel) * item);
    }
    const StreamHandle at = handle_of(stream);
    with_word(item_size(out.dtype), [&](auto zero) {
      const CopyEach<decltype(zero)> body{make_walk<2>({&out, &in})};
      stream.launch([=, count = out.numel] { launch_each(at, count, body, "copy"); });
    });
  }

  void accumulate(const Stream& stream, const View& out, const View& in) const override {
    if (add_packs<float>(stream, out, in) || add_packs<BFloat16>(stream, out, in) ||
        add_packs<Float16>(stream, out, in) || add_packs<double>(stream, out, in)) {
      return;
    }
    const StreamHandle at = handle_of(stream);
    with_compute_type(out.dtype, in.dtype, [&](auto zero) {
      const AccumulateEach<decltype(zero)> body{make_walk<2>({&out, &in})};
      stream.launch([=, count = out.numel] { launch_each(at, count, body, "accumulate"); });
    });
  }

  void arange(const Stream&, const View&, double, double) const override { not_filled("arange"); }
  void unary(const Stream&, UnaryOp, const View&, const View&, ScalarParams) const override {
    not_filled("unary element-wise operation");
  }
  void binary(const Stream&, BinaryOp, const View&, const View&, const View&,
              ScalarParams) const override {
    not_filled("binary element-wise operation");
  }
  void ternary(const Stream&, TernaryOp, const View&, const View&, const View&,
               const View&) const override {
    not_filled("ternary element-wise operation");
  }

 private:
  static void convert_each(const Stream& stream, const View& out, const View& in) {
    const StreamHandle at = handle_of(stream);
    with_compute_type(out.dtype, in.dtype, [&](auto zero) {
      const ConvertEach<decltype(zero)> body{make_walk<2>({&out, &in})};
      stream.launch([=, count = out.numel] { launch_each(at, count, body, "copy"); });
    });
  }
};

}  // namespace

const ElementwiseKernels& elementwise_kernels() {
  static const CudaElementwise instance;
  return instance;
}

}  // namespace cohort::backend::cuda
