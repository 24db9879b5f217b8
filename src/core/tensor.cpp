#include "cohort/core/tensor.h"

#include <algorithm>
#include <cstring>
#include <ostream>
#include <utility>

#include "backend/backend.h"
#include "cohort/core/context.h"

namespace cohort {
namespace {

bool is_row_major(const Shape& shape, const Dims& strides) {
  std::int64_t expected = 1;
  for (int i = shape.size() - 1; i >= 0; --i) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

const Stream& stream_of(const Tensor& tensor) {
  return Context::current().stream(tensor.device());
}

// Throws when writing `tensor` in place would falsify a graph.
void check_writable(const char* operation, const Tensor& tensor) {
  check<AutogradError>(!(Context::current().grad_enabled && tensor.requires_grad()), "[", operation,
                       "] in-place write to a tensor of shape ", tensor.shape(),
                       " that requires a gradient; wrap it in NoGrad or write to detach()");
}

}  // namespace

TensorImpl::TensorImpl(IntrusivePtr<Storage> given, DType type, const Shape& sizes,
                       const Dims& steps, std::int64_t first)
    : storage(std::move(given)),
      shape(sizes),
      strides(steps),
      offset(first),
      numel(sizes.product()),
      dtype(type),
      contiguous(numel == 0 || is_row_major(sizes, steps)) {}

void TensorImpl::swap_view(TensorImpl& other) noexcept {
  std::swap(storage, other.storage);
  std::swap(shape, other.shape);
  std::swap(strides, other.strides);
  std::swap(offset, other.offset);
  std::swap(numel, other.numel);
  std::swap(dtype, other.dtype);
  std::swap(contiguous, other.contiguous);
}

Tensor Tensor::empty(const Shape& shape, const TensorOptions& options) {
  std::int64_t bytes = static_cast<std::int64_t>(item_size(options.dtype));
  for (const std::int64_t size : shape) {
    check<ShapeError>(size >= 0 && !__builtin_mul_overflow(bytes, size, &bytes), "[empty] shape ",
                      shape, " is negative or too large");
  }
  Tensor tensor(make_intrusive<TensorImpl>(
      make_intrusive<Storage>(static_cast<std::size_t>(bytes), options.device), options.dtype,
      shape, contiguous_strides(shape), 0));
  if (options.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

Dims dense_strides(const Tensor& tensor) {
  std::vector<int> dims;
  for (int d = 0; d < tensor.rank(); ++d) {
    if (tensor.shape()[d] != 1) dims.push_back(d);
  }
  std::sort(dims.begin(), dims.end(),
            [&](int a, int b) { return tensor.strides()[a] < tensor.strides()[b]; });
  std::int64_t expected = 1;
  for (const int d : dims) {
    if (tensor.strides()[d] != expected) return contiguous_strides(tensor.shape());
    expected *= tensor.shape()[d];
  }
  return tensor.strides();
}

Tensor Tensor::empty_like(const Tensor& other) {
  const Tensor tensor = empty(other.shape(), other.options());
  if (other.is_contiguous()) return tensor;
  return tensor.as_strided(other.shape(), dense_strides(other), 0);
}

Tensor Tensor::full(const Shape& shape, double value, const TensorOptions& options) {
  Tensor tensor = empty(shape, {options.dtype, options.device, false});
  tensor.fill_(value);
  if (options.requires_grad) tensor.set_requires_grad(true);
  return tensor;
}

Tensor Tensor::zeros(const Shape& shape, const TensorOptions& options) {
  return full(shape, 0, options);
}

Tensor Tensor::ones(const Shape& shape, const TensorOptions& options) {
  return full(shape, 1, options);
}

Tensor Tensor::from_bytes(const void* values, std::int64_t count, DType dtype, const Shape& shape) {
  check<ShapeError>(count == shape.product(), "[from] ", count, " values do not fill shape ",
                    shape);
  Tensor tensor = empty(shape, {.dtype = dtype});
  if (count > 0) std::memcpy(tensor.host_data(dtype), values, tensor.bytes());
  return tensor;
}

void* Tensor::host_data(DType expected) const {
  check<DTypeError>(expected == dtype(), "[data] the tensor is ", dtype(), ", not ", expected);
  check<NotSupported>(device().type == DeviceType::cpu, "[data] the tensor is on ", device(),
                      "; copy it to the CPU first with to(Device::cpu())");
  check<Error>(storage().has_memory(), "[data] the tensor's storage has been released");
  stream_of(*this).synchronize();
  return raw();
}

template <typename T>
std::vector<T> Tensor::to_vector() const {
  check<NotSupported>(device().type != DeviceType::meta, "[to_vector] a meta tensor has no values");
  Tensor host = empty(shape(), {.dtype = dtype_of<T>});
  if (device().type == DeviceType::cpu) {
    host.copy_(detach());
  } else {
    host.copy_(detach().to(Device::cpu()));
  }
  const T* first = host.data<T>();
  return std::vector<T>(first, first + numel());
}

template std::vector<float> Tensor::to_vector<float>() const;
template std::vector<double> Tensor::to_vector<double>() const;
template std::vector<std::int32_t> Tensor::to_vector<std::int32_t>() const;
template std::vector<std::int64_t> Tensor::to_vector<std::int64_t>() const;
template std::vector<std::uint8_t> Tensor::to_vector<std::uint8_t>() const;

template <typename T>
T Tensor::item() const {
  check<ShapeError>(numel() == 1, "[item] needs a tensor with one element, got shape ", shape());
  return to_vector<T>().front();
}

template float Tensor::item<float>() const;
template double Tensor::item<double>() const;
template std::int32_t Tensor::item<std::int32_t>() const;
template std::int64_t Tensor::item<std::int64_t>() const;

double Tensor::item() const {
  return item<double>();
}

Tensor Tensor::as_strided(const Shape& shape, const Dims& strides, std::int64_t offset) const {
  check<ShapeError>(shape.size() == strides.size(), "[as_strided] shape ", shape, " and strides ",
                    strides, " differ in length");
  std::int64_t last = offset;
  for (int i = 0; i < shape.size(); ++i) {
    check(strides[i] >= 0 && shape[i] >= 0, "[as_strided] negative size or stride");
    last += std::max<std::int64_t>(shape[i] - 1, 0) * strides[i];
  }
  const auto limit = static_cast<std::int64_t>(storage().bytes() / item_size(dtype()));
  check(offset >= 0 && (shape.product() == 0 || last < limit), "[as_strided] shape ", shape,
        " with strides ", strides, " from ", offset, " does not lie in a storage of ", limit,
        " elements");
  return Tensor(make_intrusive<TensorImpl>(impl_->storage, dtype(), shape, strides, offset));
}

Tensor Tensor::detach() const {
  return Tensor(
      make_intrusive<TensorImpl>(impl_->storage, dtype(), shape(), strides(), impl_->offset));
}

Tensor& Tensor::copy_(const Tensor& source) {
  check_writable("copy_", *this);
  check<ShapeError>(broadcast_shapes(shape(), source.shape()) == shape(), "[copy_] shape ",
                    source.shape(), " does not broadcast to ", shape());
  check<NotSupported>(device() == source.device(), "[copy_] from ", source.device(), " to ",
                      device(), ": bring the source over with to(device) first");
  storage().bump_version();
  backend::backend_for(device().type)
      .elementwise()
      .copy(stream_of(*this), *this, backend::broadcast_view(source, shape()));
  return *this;
}

Tensor& Tensor::fill_(double value) {
  check_writable("fill_", *this);
  storage().bump_version();
  backend::backend_for(device().type).elementwise().fill(stream_of(*this), *this, value);
  return *this;
}

}  // namespace cohort
