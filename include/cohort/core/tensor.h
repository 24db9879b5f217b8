#pragma once

#include <cstdint>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "cohort/core/device.h"
#include "cohort/core/dims.h"
#include "cohort/core/dtype.h"
#include "cohort/core/intrusive_ptr.h"
#include "cohort/core/storage.h"

namespace cohort {

// What the autograd layer attaches to a tensor; opaque here (autograd/meta.h derives from it).
struct AutogradSlot {
  virtual ~AutogradSlot() = default;
};

// Dtype and device of a new tensor.
struct TensorOptions {
  DType dtype = DType::f32;
  Device device = Device::cpu();
  bool requires_grad = false;
};

// What a tensor is: a strided window into a storage. Shared by the handles that name it.
class TensorImpl : public RefCounted {
 public:
  TensorImpl(IntrusivePtr<Storage> storage, DType dtype, const Shape& shape, const Dims& strides,
             std::int64_t offset);

  // Exchanges memory, dtype, shape and layout with `other`, but no gradient information: every
  // handle of the one then sees what the other was, until they are exchanged back. See
  // Context::stand_ins.
  void swap_view(TensorImpl& other) noexcept;

  IntrusivePtr<Storage> storage;
  Shape shape;
  Dims strides;
  std::int64_t offset;  // of the first element, in elements
  std::int64_t numel;
  DType dtype;
  bool contiguous;                         // row-major without gaps
  std::unique_ptr<AutogradSlot> autograd;  // null for a tensor without gradient or history
};

// A handle to an n-dimensional array with strides, on one device. Copying a Tensor copies the
// handle; two handles of one tensor share everything, gradient included. Views share the storage
// only.
//
// A tensor belongs to one host thread at a time. Operations are enqueued on the context's current
// stream; item(), to_vector() and data() wait for that stream.
//
// The members that concern gradients are implemented by the autograd layer (autograd/autograd.h),
// the ones that return derived tensors by `ops`; all of those record the graph where it is wanted.
class Tensor {
 public:
  Tensor() = default;
  explicit Tensor(IntrusivePtr<TensorImpl> impl) : impl_(std::move(impl)) {}

  // Uninitialised, contiguous.
  static Tensor empty(const Shape& shape, const TensorOptions& options = {});
  // Uninitialised, with the shape, dtype, device and dense_strides() of `other`.
  static Tensor empty_like(const Tensor& other);
  static Tensor zeros(const Shape& shape, const TensorOptions& options = {});
  static Tensor ones(const Shape& shape, const TensorOptions& options = {});
  static Tensor full(const Shape& shape, double value, const TensorOptions& options = {});
  // 0, 1, …, count - 1.
  static Tensor arange(std::int64_t count, const TensorOptions& options = {.dtype = DType::i64});
  // Uniform in [0, 1), and normal with mean 0 and deviation 1, from the context's `generator`.
  static Tensor rand(const Shape& shape, const TensorOptions& options = {});
  static Tensor randn(const Shape& shape, const TensorOptions& options = {});
  // A copy of `values`, row by row, with their dtype, on the CPU; ShapeError when the count
  // differs.
  template <typename T>
  static Tensor from(std::span<const T> values, const Shape& shape) {
    return from_bytes(values.data(), static_cast<std::int64_t>(values.size()), dtype_of<T>, shape);
  }
  template <typename T>
  static Tensor from(const std::vector<T>& values, const Shape& shape) {
    return from(std::span<const T>(values), shape);
  }
  template <typename T>
  static Tensor from(std::initializer_list<T> values, const Shape& shape) {
    return from(std::span<const T>(values.begin(), values.size()), shape);
  }
  template <typename T>
  static Tensor scalar(T value) {
    return from({value}, Shape{});
  }

  bool defined() const { return static_cast<bool>(impl_); }
  explicit operator bool() const { return defined(); }
  // Same tensor, not equal values.
  bool is_same(const Tensor& other) const { return impl_ == other.impl_; }

  const Shape& shape() const { return impl_->shape; }
  const Dims& strides() const { return impl_->strides; }
  // `dim` may be negative, counted from the end.
  std::int64_t size(int dim) const { return shape()[normalize_dim(dim, rank())]; }
  int rank() const { return impl_->shape.size(); }
  std::int64_t numel() const { return impl_->numel; }
  std::size_t bytes() const { return static_cast<std::size_t>(numel()) * item_size(dtype()); }
  DType dtype() const { return impl_->dtype; }
  Device device() const { return impl_->storage->device(); }
  bool is_contiguous() const { return impl_->contiguous; }
  TensorOptions options() const { return {dtype(), device(), false}; }
  Storage& storage() const { return *impl_->storage; }
  std::int64_t storage_offset() const { return impl_->offset; }

  // Address of the first element, for kernels: does not wait for any stream. Null on meta.
  void* raw() const {
    auto* base = static_cast<std::byte*>(impl_->storage->data());
    return base ? base + impl_->offset * static_cast<std::int64_t>(item_size(impl_->dtype)) : base;
  }
  template <typename T>
  T* raw() const {
    return static_cast<T*>(raw());
  }
  // Address of the first element for host code on a CPU tensor: waits for the current stream.
  // DTypeError when T is not the dtype. Writers through it must call storage().bump_version().
  template <typename T>
  T* data() const {
    return static_cast<T*>(host_data(dtype_of<T>));
  }
  // The value of a tensor with one element.
  template <typename T>
  T item() const;
  double item() const;
  // The elements in row-major order, converted to T.
  template <typename T>
  std::vector<T> to_vector() const;

  // A window into the same storage, without gradient; the caller answers for its bounds being
  // inside the storage (InvalidArgument otherwise).
  Tensor as_strided(const Shape& shape, const Dims& strides, std::int64_t offset) const;
  // The same window and storage, without gradient.
  Tensor detach() const;

  // Writes in place; InvalidArgument on a tensor that takes part in a graph while grad mode is on.
  Tensor& copy_(const Tensor& source);  // broadcasts and converts
  Tensor& fill_(double value);
  Tensor& zero_() { return fill_(0); }

  // Derived tensors with derivatives (ops/shape.h, ops/cast.h).
  Tensor reshape(const Shape& shape) const;  // one size may be -1
  Tensor transpose(int dim0, int dim1) const;
  Tensor to(DType dtype) const;
  Tensor to(Device device) const;
  Tensor contiguous() const;
  Tensor clone() const;

  // Gradients (autograd/autograd.h).
  bool requires_grad() const;
  Tensor& set_requires_grad(bool value);  // of a leaf
  bool is_leaf() const;
  // The accumulated gradient of a leaf; undefined before the first backward.
  const Tensor& grad() const;
  void set_grad(const Tensor& grad);  // an undefined tensor clears it
  // Computes the gradients of all leaves this tensor was made from. `gradient` may be left out for
  // a single element.
  void backward(const Tensor& gradient = {}, bool retain_graph = false) const;

  TensorImpl* impl() const { return impl_.get(); }

 private:
  static Tensor from_bytes(const void* values, std::int64_t count, DType dtype, const Shape& shape);
  void* host_data(DType dtype) const;

  IntrusivePtr<TensorImpl> impl_;
};

// The tensor's strides where it covers its memory without gaps, in whatever order of dimensions;
// row-major ones otherwise.
Dims dense_strides(const Tensor& tensor);

// Values, shape, dtype and device, abridged when large. Waits for the stream.
std::ostream& operator<<(std::ostream& out, const Tensor& tensor);

}  // namespace cohort
