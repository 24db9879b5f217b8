#include <algorithm>

#include "backend/cpu/elementwise_convert.h"
#include "backend/cpu/families.h"
#include "backend/cpu/optim_updates.h"
#include "backend/elementwise_loops.h"
#include "backend/optim_kernels.h"

namespace cohort::backend::cpu {
namespace {

// Elements converted at a time: five buffers of them fit the L1 cache.
constexpr std::int64_t kChunk = 512;

// One operand: where it lies, or a buffer that it is converted into and back from.
template <typename T>
class Staged {
 public:
  explicit Staged(const View& view) : view_(view), direct_(view.dtype == dtype_of<T>) {}

  bool direct() const { return direct_ || view_.data == nullptr; }

  T* bring(std::int64_t i, std::size_t count) {
    if (view_.data == nullptr) return nullptr;
    if (direct_) return view_.as<T>() + i;
    load(values_, address(i), view_.dtype, count);
    return values_;
  }
  void put_back(std::int64_t i, std::size_t count) {
    if (!direct()) store(address(i), view_.dtype, values_, count);
  }

 private:
  std::byte* address(std::int64_t i) const {
    return view_.as<std::byte>() + i * static_cast<std::int64_t>(item_size(view_.dtype));
  }

  const View& view_;
  bool direct_;
  alignas(64) T values_[kChunk];
};

// fn(first element, count) over chunks, or over everything where nothing needs converting.
template <typename F>
void for_each_chunk(std::int64_t total, bool direct, F&& fn) {
  const std::int64_t chunk = direct ? std::max<std::int64_t>(total, 1) : kChunk;
  for (std::int64_t i = 0; i < total; i += chunk) {
    fn(i, static_cast<std::size_t>(std::min(chunk, total - i)));
  }
}

template <typename T>
void sgd_now(const View& param, const View& grad, const View& buffer, const SgdParams& params) {
  Staged<T> p(param);
  Staged<T> g(grad);
  Staged<T> b(buffer);
  for_each_chunk(
      param.numel, p.direct() && g.direct() && b.direct(), [&](std::int64_t i, std::size_t count) {
        sgd_update({p.bring(i, count), g.bring(i, count), b.bring(i, count)}, count, params);
        p.put_back(i, count);
        b.put_back(i, count);
      });
}

template <typename T>
void adam_now(const View& param, const View& grad, const View& m, const View& v, const View& max_v,
              const AdamParams& params) {
  Staged<T> p(param);
  Staged<T> g(grad);
  Staged<T> first(m);
  Staged<T> second(v);
  Staged<T> largest(max_v);
  const bool direct =
      p.direct() && g.direct() && first.direct() && second.direct() && largest.direct();
  for_each_chunk(param.numel, direct, [&](std::int64_t i, std::size_t count) {
    adam_update({p.bring(i, count), g.bring(i, count), first.bring(i, count),
                 second.bring(i, count), largest.bring(i, count)},
                count, params);
    p.put_back(i, count);
    first.put_back(i, count);
    second.put_back(i, count);
    largest.put_back(i, count);
  });
}

class CpuOptim final : public OptimKernels {
 public:
  void sgd(const Stream& stream, const View& param, const View& grad, const View& buffer,
           const SgdParams& params) const override {
    stream.launch([=] {
      if (param.dtype == DType::f64) {
        sgd_now<double>(param, grad, buffer, params);
      } else {
        sgd_now<float>(param, grad, buffer, params);
      }
    });
  }
  void adam(const Stream& stream, const View& param, const View& grad, const View& m, const View& v,
            const View& max_v, const AdamParams& params) const override {
    stream.launch([=] {
      if (param.dtype == DType::f64) {
        adam_now<double>(param, grad, m, v, max_v, params);
      } else {
        adam_now<float>(param, grad, m, v, max_v, params);
      }
    });
  }
  void unscale(const Stream& stream, const View& flag, const View& grad,
               double factor) const override {
    stream.launch([=] { cpu::unscale(flag, grad, factor); });
  }
};

}  // namespace

const OptimKernels& optim_kernels() {
  static const CpuOptim instance;
  return instance;
}

}  // namespace cohort::backend::cpu
