#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <iosfwd>
#include <span>

#include "cohort/core/error.h"

namespace cohort {

// Sizes or strides of a tensor, in elements: a vector of at most 8 integers without allocation.
class Dims {
 public:
  static constexpr int kMax = 8;

  Dims() = default;
  Dims(std::initializer_list<std::int64_t> values)  // NOLINT(google-explicit-constructor)
      : Dims(std::span<const std::int64_t>(values.begin(), values.size())) {}
  explicit Dims(std::span<const std::int64_t> values) {
    for (const std::int64_t value : values) push_back(value);
  }
  // `count` times `value`.
  static Dims filled(int count, std::int64_t value) {
    Dims result;
    for (int i = 0; i < count; ++i) result.push_back(value);
    return result;
  }

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  std::int64_t& operator[](int i) { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t operator[](int i) const { return values_[static_cast<std::size_t>(i)]; }
  std::int64_t& back() { return (*this)[size_ - 1]; }
  std::int64_t back() const { return (*this)[size_ - 1]; }
  const std::int64_t* begin() const { return values_.data(); }
  const std::int64_t* end() const { return values_.data() + size_; }
  std::int64_t* begin() { return values_.data(); }
  std::int64_t* end() { return values_.data() + size_; }

  void push_back(std::int64_t value) {
    check<ShapeError>(size_ < kMax, "[tensor] more than ", kMax, " dimensions; merge some of them");
    values_[static_cast<std::size_t>(size_++)] = value;
  }
  void insert(int position, std::int64_t value) {
    push_back(value);
    for (int i = size_ - 1; i > position; --i) (*this)[i] = (*this)[i - 1];
    (*this)[position] = value;
  }
  void erase(int position) {
    for (int i = position; i + 1 < size_; ++i) (*this)[i] = (*this)[i + 1];
    --size_;
  }

  // Product of the values; 1 when empty.
  std::int64_t product() const {
    std::int64_t result = 1;
    for (const std::int64_t value : *this) result *= value;
    return result;
  }

  friend bool operator==(const Dims& a, const Dims& b) {
    if (a.size_ != b.size_) return false;
    for (int i = 0; i < a.size_; ++i) {
      if (a[i] != b[i]) return false;
    }
    return true;
  }

 private:
  std::array<std::int64_t, kMax> values_{};
  int size_ = 0;
};

using Shape = Dims;

// "[2, 3]"
std::ostream& operator<<(std::ostream& out, const Dims& dims);

// Strides of a row-major layout of `shape`.
Dims contiguous_strides(const Shape& shape);

// The shape both operands are stretched to, right-aligned, sizes 1 repeated. ShapeError otherwise.
Shape broadcast_shapes(const Shape& a, const Shape& b);

// A dimension number in [-rank, rank) as one in [0, rank); InvalidArgument otherwise.
int normalize_dim(int dim, int rank);

}  // namespace cohort
