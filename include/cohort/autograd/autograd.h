#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/context.h"
#include "cohort/core/tensor.h"

namespace cohort {

// Records no graph in its scope.
class NoGrad {
 public:
  NoGrad() : context_(Context::current()), previous_(context_.grad_enabled) {
    context_.grad_enabled = false;
  }
  ~NoGrad() { context_.grad_enabled = previous_; }
  NoGrad(const NoGrad&) = delete;
  NoGrad& operator=(const NoGrad&) = delete;

 private:
  Context& context_;
  bool previous_;
};

// Removes a hook. A handle of a leaf's hook keeps the leaf alive until remove().
class HookHandle {
 public:
  HookHandle() = default;
  explicit HookHandle(std::function<void()> remove) : remove_(std::move(remove)) {}
  void remove() {
    if (remove_) std::exchange(remove_, nullptr)();
  }

 private:
  std::function<void()> remove_;
};

struct BackwardOptions {
  bool retain_graph = false;
  // Not supported: a clear error.
  bool create_graph = false;
};

// Adds to every leaf's grad() the derivative of sum(outputs[i] * gradients[i]). A missing gradient
// is one, for outputs with a single element. AutogradError when no output requires a gradient, when
// the graph was released by an earlier backward, or when a saved tensor was written in place.
// After an exception the gradients are undefined until cleared, and the graph may be used again
// only when it was retained.
void backward(const std::vector<Tensor>& outputs, const std::vector<Tensor>& gradients = {},
              const BackwardOptions& options = {});

// The same derivatives with respect to `inputs` alone, returned and not accumulated anywhere:
// leaves keep their grad(), no destination is written, no post-accumulate hook runs. An input that
// the outputs do not depend on has an undefined gradient.
std::vector<Tensor> grad(const std::vector<Tensor>& outputs, const std::vector<Tensor>& inputs,
                         const std::vector<Tensor>& gradients = {},
                         const BackwardOptions& options = {});

// Runs `hook` on the gradient of `tensor` whenever it is computed; the hook may return a
// replacement of equal shape and dtype, or an undefined tensor to keep it. On a leaf it runs before
// accumulation, once per backward, on the sum over all uses.
HookHandle register_hook(const Tensor& tensor, std::function<Tensor(const Tensor&)> hook);

// Runs `hook` after the leaf's gradient of this backward has been accumulated in full.
HookHandle register_post_accumulate_grad_hook(const Tensor& leaf,
                                              std::function<void(const Tensor& leaf)> hook);

// Runs `callback` once, when the backward that is running now has computed all gradients, or
// `on_error` with the reason when it ends by an exception. AutogradError outside a backward.
// Callbacks run in order; one may queue further ones, and one that throws makes backward throw.
void queue_callback(std::function<void()> callback,
                    std::function<void(const std::exception_ptr&)> on_error = {});

// Whether a backward() is running in this thread, as opposed to a grad() or none.
bool backward_is_accumulating();

// Whether the backward that is running in this thread will come to `leaf`, or has. False outside a
// backward.
bool backward_reaches(const Tensor& leaf);

// Identifies the innermost backward that is running in this thread, by a number that no other
// backward of the thread's context has; 0 outside one.
std::uint64_t current_backward();

// Calls `done` once, when the backward that is running in this thread has run all of its operations
// with numbers in [begin, end), by Context::next_node: those that were recorded between two points
// of forward. At once when there is none left. AutogradError outside a backward.
void when_backward_has_left(std::uint64_t begin, std::uint64_t end, std::function<void()> done);

// Names what manages the leaf's gradient ("DDP"), of which there can be one at a time; an empty
// name ends it. AutogradError when another manager is named already.
void set_grad_manager(const Tensor& leaf, const std::string& manager);
const std::string& grad_manager(const Tensor& leaf);

// Names the memory in which the leaf's gradient is to be accumulated: equal shape, dtype and
// device. From then on grad(), once defined, is `destination` itself. An existing gradient is moved
// into it. The last operation of backward writes there directly where that is exact (one edge into
// the leaf, no tensor hook); otherwise the gradient is added from a temporary. An undefined tensor
// removes the destination and leaves the gradient where it is.
void set_grad_destination(const Tensor& leaf, const Tensor& destination);
const Tensor& grad_destination(const Tensor& leaf);

// Counts for tests and reports: how many gradients the last backward of this thread wrote straight
// into destinations, and how many were added from temporaries.
struct BackwardStats {
  std::int64_t nodes = 0;
  std::int64_t direct_writes = 0;
  std::int64_t temporaries = 0;
};

// As backward(), and returns what it did.
BackwardStats backward_with_stats(const std::vector<Tensor>& outputs,
                                  const std::vector<Tensor>& gradients = {},
                                  const BackwardOptions& options = {});

}  // namespace cohort
