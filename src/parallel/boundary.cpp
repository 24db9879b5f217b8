#include "parallel/boundary.h"

#include <memory>
#include <utility>
#include <vector>

#include "cohort/autograd/node.h"

namespace cohort::parallel {
namespace {

// Behind one tensor only: one node behind several would lead backward from one that is used to
// operations that only others came from.
class Boundary final : public Node {
 public:
  explicit Boundary(std::shared_ptr<std::function<void()>> passing)
      : passing_(std::move(passing)) {}

  std::string_view name() const override { return "FSDPBoundary"; }
  void backward(GradFrame& frame) override {
    (*passing_)();
    frame.set(0, frame.grad(0));
  }
  void release() override {}

 private:
  std::shared_ptr<std::function<void()>> passing_;
};

}  // namespace

bool put_boundary(std::span<Tensor> tensors, std::function<void()> passing) {
  const auto shared = std::make_shared<std::function<void()>>(std::move(passing));
  bool any = false;
  for (Tensor& tensor : tensors) {
    if (!recording(tensor) || !is_floating(tensor.dtype())) continue;
    const std::vector<const Tensor*> inputs{&tensor};
    std::vector<Tensor> outputs{tensor.detach()};
    connect(outputs, make_intrusive<Boundary>(shared), inputs);
    tensor = outputs[0];
    any = true;
  }
  return any;
}

}  // namespace cohort::parallel
