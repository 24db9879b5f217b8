#pragma once

#include <memory>
#include <type_traits>
#include <utility>

namespace cohort {

// A move-only `void()` callable: what a stream queues. (std::function would need copyable
// captures, and tasks own tensors and events.)
class Task {
 public:
  Task() = default;
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, Task> && std::is_invocable_v<F&>)
      Task(F&& fn)  // NOLINT(google-explicit-constructor, bugprone-forwarding-reference-overload)
      : callable_(std::make_unique<Model<std::remove_cvref_t<F>>>(std::forward<F>(fn))) {}

  void operator()() { callable_->call(); }
  explicit operator bool() const { return callable_ != nullptr; }

 private:
  struct Callable {
    virtual ~Callable() = default;
    virtual void call() = 0;
  };
  template <typename F>
  struct Model final : Callable {
    explicit Model(F&& given) : fn(std::move(given)) {}
    explicit Model(const F& given) : fn(given) {}
    void call() override { fn(); }
    F fn;
  };
  std::unique_ptr<Callable> callable_;
};

}  // namespace cohort
