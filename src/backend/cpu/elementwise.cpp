#include "backend/cpu/copy.h"
#include "backend/cpu/elementwise_convert.h"
#include "backend/cpu/elementwise_maps.h"
#include "backend/cpu/families.h"
#include "backend/elementwise_kernels.h"
#include "backend/elementwise_loops.h"

namespace cohort::backend::cpu {
namespace {

// Elements staged at a time. Four operands of 8 bytes take 16 KiB, half of an L1 cache.
constexpr std::int64_t kChunk = 512;

// The function for `op` in the type T; NotSupported where there is none.
template <typename T, typename Op>
MapFn<T> find(Op op, ScalarParams params) {
  MapFn<T> fn = nullptr;
  if constexpr (std::is_same_v<Op, UnaryOp>) {
    if constexpr (std::is_same_v<T, float>) fn = find_unary_f32(op, params);
    if constexpr (std::is_same_v<T, double>) fn = find_unary_f64(op, params);
    if constexpr (std::is_same_v<T, std::int64_t>) fn = find_unary_i64(op, params);
  } else if constexpr (std::is_same_v<Op, BinaryOp>) {
    const bool grad = op >= BinaryOp::relu_grad;
    if constexpr (std::is_same_v<T, float>)
      fn = (grad ? find_grad_f32 : find_binary_f32)(op, params);
    if constexpr (std::is_same_v<T, double>)
      fn = (grad ? find_grad_f64 : find_binary_f64)(op, params);
    if constexpr (std::is_same_v<T, std::int64_t>) fn = find_binary_i64(op, params);
  } else {
    if constexpr (std::is_same_v<T, float>) fn = find_ternary_f32(op);
    if constexpr (std::is_same_v<T, double>) fn = find_ternary_f64(op);
    if constexpr (std::is_same_v<T, std::int64_t>) fn = find_ternary_i64(op);
  }
  check<NotSupported>(fn != nullptr, "[elementwise] operation ", static_cast<int>(op),
                      " is not defined on integers; convert them with to(f32)");
  return fn;
}

// Operands that are not elements of T side by side are brought into that form a chunk at a time.
template <int N, typename T>
class Staged {
 public:
  Staged(const Loops<N + 1>& loops, MapFn<T> fn, ScalarParams params)
      : loops_(loops), fn_(fn), params_(params) {
    for (int k = 0; k <= N; ++k) {
      item_[k] = static_cast<std::int64_t>(item_size(loops.dtype[k]));
      direct_[k] = loops.dtype[k] == dtype_of<T> && loops.step[k] == 1;
      repeats_[k] = k > 0 && loops.step[k] == 0;
    }
  }

  void run(const std::array<std::byte*, N + 1>& at) {
    Operand<T> in[N];
    for (int k = 1; k <= N; ++k) {
      if (!repeats_[k]) continue;
      load(values_[k], at[k], loops_.dtype[k], 1);
      in[k - 1] = {values_[k], 0};
    }
    for (std::int64_t i = 0; i < loops_.run; i += kChunk) {
      const auto count = static_cast<std::size_t>(std::min(kChunk, loops_.run - i));
      for (int k = 1; k <= N; ++k) {
        if (repeats_[k]) continue;
        in[k - 1] = {bring(k, at[k] + i * loops_.step[k] * item_[k], count), 1};
      }
      std::byte* target = at[0] + i * loops_.step[0] * item_[0];
      T* out = direct_[0] ? reinterpret_cast<T*>(target) : values_[0];
      fn_(out, in, count, params_);
      if (!direct_[0]) put(target, count);
    }
  }

 private:
  const T* bring(int k, const std::byte* from, std::size_t count) {
    if (direct_[k]) return reinterpret_cast<const T*>(from);
    if (loops_.step[k] != 1) {
      gather(raw_, from, loops_.step[k], static_cast<std::size_t>(item_[k]), count);
      from = raw_;
    }
    load(values_[k], from, loops_.dtype[k], count);
    return values_[k];
  }

  void put(std::byte* to, std::size_t count) {
    if (loops_.step[0] == 1) {
      store(to, loops_.dtype[0], values_[0], count);
    } else {
      store(raw_, loops_.dtype[0], values_[0], count);
      scatter(to, loops_.step[0], raw_, static_cast<std::size_t>(item_[0]), count);
    }
  }

  const Loops<N + 1>& loops_;
  MapFn<T> fn_;
  ScalarParams params_;
  std::int64_t item_[N + 1];
  bool direct_[N + 1];
  bool repeats_[N + 1];
  alignas(64) T values_[N + 1][kChunk];
  alignas(64) std::byte raw_[kChunk * sizeof(std::int64_t)];
};

template <int N, typename T>
void run(const Loops<N + 1>& loops, MapFn<T> fn, ScalarParams params) {
  bool direct = loops.dtype[0] == dtype_of<T> && loops.step[0] == 1;
  for (int k = 1; k <= N; ++k) {
    direct = direct && loops.dtype[k] == dtype_of<T> && (loops.step[k] == 1 || loops.step[k] == 0);
  }
  if (!direct) {
    Staged<N, T> staged(loops, fn, params);
    for_each_run(loops, [&](const std::array<std::byte*, N + 1>& at) { staged.run(at); });
    return;
  }
  for_each_run(loops, [&](const std::array<std::byte*, N + 1>& at) {
    Operand<T> in[N];
    for (int k = 1; k <= N; ++k) {
      in[k - 1] = {reinterpret_cast<const T*>(at[k]), loops.step[k]};
    }
    fn(reinterpret_cast<T*>(at[0]), in, static_cast<std::size_t>(loops.run), params);
  });
}

// Chooses the function now, so that a wrong call throws here and not in a queue, and enqueues it.
template <int N, typename Op>
void launch(const Stream& stream, Op op, const std::array<const View*, N + 1>& views,
            ScalarParams params) {
  const Loops<N + 1> loops = make_loops<N + 1>(views);
  DType compute = views[1]->dtype;
  // A bool output says nothing about the type to compare in.
  if (loops.dtype[0] != DType::boolean) compute = compute_dtype(compute, loops.dtype[0]);
  for (int k = 1; k <= N; ++k) compute = compute_dtype(compute, loops.dtype[k]);
  dispatch_compute(compute, [&](auto zero) {
    using T = decltype(zero);
    const MapFn<T> fn = find<T>(op, params);
    stream.launch([=] { run<N, T>(loops, fn, params); });
  });
}

template <typename T>
void arange_now(const View& out, double start, double step) {
  T values[kChunk];
  const auto item = static_cast<std::int64_t>(item_size(out.dtype));
  for (std::int64_t i = 0; i < out.numel; i += kChunk) {
    const std::int64_t count = std::min(kChunk, out.numel - i);
    for (std::int64_t j = 0; j < count; ++j) {
      values[j] = static_cast<T>(start) + static_cast<T>(i + j) * static_cast<T>(step);
    }
    store(out.as<std::byte>() + i * item, out.dtype, values, static_cast<std::size_t>(count));
  }
}

class CpuElementwise final : public ElementwiseKernels {
 public:
  void fill(const Stream& stream, const View& out, double value) const override {
    stream.launch([=] { fill_now(out, value); });
  }
  void copy(const Stream& stream, const View& out, const View& in) const override {
    stream.launch([=] { copy_now(out, in); });
  }
  void accumulate(const Stream& stream, const View& out, const View& in) const override {
    launch<2>(stream, BinaryOp::add, {&out, &out, &in}, {});
  }
  void arange(const Stream& stream, const View& out, double start, double step) const override {
    stream.launch([=] {
      if (is_floating(out.dtype)) {
        arange_now<double>(out, start, step);
      } else {
        arange_now<std::int64_t>(out, start, step);
      }
    });
  }

  void unary(const Stream& stream, UnaryOp op, const View& out, const View& x,
             ScalarParams params) const override {
    launch<1>(stream, op, {&out, &x}, params);
  }
  void binary(const Stream& stream, BinaryOp op, const View& out, const View& x, const View& y,
              ScalarParams params) const override {
    launch<2>(stream, op, {&out, &x, &y}, params);
  }
  void ternary(const Stream& stream, TernaryOp op, const View& out, const View& x, const View& y,
               const View& z) const override {
    launch<3>(stream, op, {&out, &x, &y, &z}, {});
  }
};

}  // namespace

const ElementwiseKernels& elementwise_kernels() {
  static const CpuElementwise instance;
  return instance;
}

}  // namespace cohort::backend::cpu
