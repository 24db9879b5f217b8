#include "cohort/ops/cast.h"

#include <utility>

#include "ops/op.h"

namespace cohort {
namespace {

class CastBackward final : public Node {
 public:
  explicit CastBackward(DType dtype) : dtype_(dtype) {}
  std::string_view name() const override { return "CastBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor& grad = frame.grad(0);
    op::sum_into(frame.target(0, grad.shape(), dtype_), grad);
  }
  void release() override {}

 private:
  DType dtype_;
};

class MoveBackward final : public Node {
 public:
  explicit MoveBackward(Device device) : device_(device) {}
  std::string_view name() const override { return "MoveBackward"; }
  void backward(GradFrame& frame) override { frame.set(0, to(frame.grad(0), device_)); }
  void release() override {}

 private:
  Device device_;
};

// A contiguous copy of `a` on `device`, which is another one; neither is the meta device.
Tensor moved(const Tensor& a, Device device) {
  Tensor packed = a.detach();
  if (!a.is_contiguous()) packed = Tensor::empty(a.shape(), a.options()).copy_(packed);
  Tensor out = Tensor::empty(a.shape(), {a.dtype(), device, false});
  // The accelerator's stream does the copy; the other side's work is waited for before, and the
  // copy after.
  const Tensor& accelerated = device.type == DeviceType::cpu ? packed : out;
  const Tensor& other = device.type == DeviceType::cpu ? out : packed;
  const Stream& stream = op::stream_of(accelerated);
  stream.wait(op::stream_of(other).record());
  op::backend_of(accelerated).copy_bytes(stream, out.raw(), packed.raw(), out.bytes());
  op::stream_of(other).wait(stream.record());
  packed.storage().record_stream(stream);
  out.storage().record_stream(stream);
  return out;
}

}  // namespace

Tensor to(const Tensor& a, DType dtype) {
  check(a.defined(), "[to] the tensor is undefined");
  if (a.dtype() == dtype) return a;
  Tensor out = Tensor::empty(a.shape(), {dtype, a.device(), false});
  op::backend_of(a).elementwise().copy(op::stream_of(a), out, a);
  if (recording(a)) connect(out, make_intrusive<CastBackward>(a.dtype()), a);
  return out;
}

Tensor to(const Tensor& a, Device device) {
  check(a.defined(), "[to] the tensor is undefined");
  if (a.device() == device) return a;
  check<NotSupported>(a.device().type != DeviceType::meta,
                      "[to] a meta tensor has no values to bring to ", device,
                      "; make an empty tensor there and fill it");
  // To the meta device goes a shape alone, from which no gradient can come back.
  if (device.type == DeviceType::meta) return Tensor::empty(a.shape(), {a.dtype(), device, false});
  Tensor out = moved(a, device);
  if (recording(a)) connect(out, make_intrusive<MoveBackward>(a.device()), a);
  return out;
}

Tensor Tensor::to(DType dtype) const {
  return cohort::to(*this, dtype);
}

Tensor Tensor::to(Device device) const {
  return cohort::to(*this, device);
}

}  // namespace cohort
