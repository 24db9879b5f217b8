#include "parallel/boundary.h"

#include <utility>
#include <vector>

#include "cohort/autograd/node.h"

namespace cohort::parallel {
namespace {

class Boundary final : public Node {
 public:
  explicit Boundary(std::function<void()> passing) : passing_(std::move(passing)) {}

  std::string_view name() const override { return "FSDPBoundary"; }
  void backward(GradFrame& frame) override {
    passing_();
    for (int i = 0; i < output_count(); ++i) {
      if (frame.grad(i).defined()) frame.set(i, frame.grad(i));
    }
  }
  void release() override {}

 private:
  std::function<void()> passing_;
};

}  // namespace

bool put_boundary(std::span<Tensor> tensors, std::function<void()> passing) {
  std::vector<Tensor*> members;
  for (Tensor& tensor : tensors) {
    if (recording(tensor) && is_floating(tensor.dtype())) members.push_back(&tensor);
  }
  if (members.empty()) return false;
  std::vector<Tensor> outputs;
  std::vector<const Tensor*> inputs;
  for (const Tensor* tensor : members) {
    inputs.push_back(tensor);
    outputs.push_back(tensor->detach());
  }
  connect(outputs, make_intrusive<Boundary>(std::move(passing)), inputs);
  for (std::size_t i = 0; i < members.size(); ++i) *members[i] = outputs[i];
  return true;
}

}  // namespace cohort::parallel
