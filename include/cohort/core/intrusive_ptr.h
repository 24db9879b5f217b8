#pragma once

#include <atomic>
#include <cstdint>
#include <utility>

namespace cohort {

// Base of objects that count their own references: one allocation, one pointer per handle.
// The count is atomic; the object itself is as thread-safe as its class says.
class RefCounted {
 public:
  RefCounted() = default;
  RefCounted(const RefCounted&) = delete;
  RefCounted& operator=(const RefCounted&) = delete;

  void add_ref() const { count_.fetch_add(1, std::memory_order_relaxed); }
  // True when the last reference went; the caller then destroys the object.
  bool drop_ref() const { return count_.fetch_sub(1, std::memory_order_acq_rel) == 1; }
  std::uint32_t use_count() const { return count_.load(std::memory_order_acquire); }

 protected:
  ~RefCounted() = default;

 private:
  mutable std::atomic<std::uint32_t> count_{0};
};

// Called when the last reference goes; a class may overload it to control its destruction.
template <typename T>
void intrusive_destroy(T* object) {
  delete object;
}

// Shared ownership of a RefCounted object.
template <typename T>
class IntrusivePtr {
 public:
  IntrusivePtr() = default;
  IntrusivePtr(std::nullptr_t) {}  // NOLINT(google-explicit-constructor)
  explicit IntrusivePtr(T* object) : object_(object) {
    if (object_) object_->add_ref();
  }
  IntrusivePtr(const IntrusivePtr& other) : IntrusivePtr(other.object_) {}
  IntrusivePtr(IntrusivePtr&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
  template <typename U>
  requires std::is_convertible_v<U*, T*> IntrusivePtr(
      const IntrusivePtr<U>& other)  // NOLINT(google-explicit-constructor)
      : IntrusivePtr(static_cast<T*>(other.get())) {}
  ~IntrusivePtr() { reset(); }

  IntrusivePtr& operator=(const IntrusivePtr& other) {  // NOLINT: copy and swap is safe
    IntrusivePtr(other).swap(*this);
    return *this;
  }
  IntrusivePtr& operator=(IntrusivePtr&& other) noexcept {
    IntrusivePtr(std::move(other)).swap(*this);
    return *this;
  }

  void reset() {
    if (T* object = std::exchange(object_, nullptr); object && object->drop_ref()) {
      intrusive_destroy(object);
    }
  }
  void swap(IntrusivePtr& other) noexcept { std::swap(object_, other.object_); }

  T* get() const { return object_; }
  T* operator->() const { return object_; }
  T& operator*() const { return *object_; }
  explicit operator bool() const { return object_ != nullptr; }
  friend bool operator==(const IntrusivePtr& a, const IntrusivePtr& b) {
    return a.object_ == b.object_;
  }

 private:
  T* object_ = nullptr;
};

template <typename T, typename... Args>
IntrusivePtr<T> make_intrusive(Args&&... args) {
  return IntrusivePtr<T>(new T(std::forward<Args>(args)...));
}

}  // namespace cohort
