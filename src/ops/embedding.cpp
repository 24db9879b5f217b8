#include "cohort/ops/embedding.h"

#include "cohort/ops/shape.h"
#include "ops/arguments.h"

namespace cohort {
namespace {

using namespace op;  // NOLINT(google-build-using-namespace)

class EmbeddingBackward final : public Node {
 public:
  EmbeddingBackward(const Tensor& indices, const Tensor& weight)
      : indices_(indices), shape_(weight.shape()) {}
  std::string_view name() const override { return "EmbeddingBackward"; }
  void backward(GradFrame& frame) override {
    const Tensor grad = contiguous(frame.grad(0));
    const GradTarget target = frame.target(0, shape_, grad.dtype());
    backend_of(grad).index().embedding_backward(
        stream_of(grad), {target.tensor, true, target.accumulate}, indices_.get(*this), grad);
  }
  void release() override { indices_.reset(); }

 private:
  SavedTensor indices_;
  Shape shape_;
};

}  // namespace

Tensor embedding(const Tensor& indices, const Tensor& weight) {
  check<DTypeError>(indices.dtype() == i64 || indices.dtype() == i32,
                    "[embedding] indices are i64 or i32, got ", indices.dtype());
  check_floating("embedding", weight);
  check<ShapeError>(weight.rank() == 2, "[embedding] weight has shape ", weight.shape(),
                    ", needs [rows, width]");
  check(indices.device() == weight.device(), "[embedding] indices on ", indices.device(),
        ", weight on ", weight.device());
  const Tensor places = contiguous(indices);
  const Tensor table = contiguous(weight.detach());
  Shape shape = indices.shape();
  shape.push_back(weight.size(1));
  Tensor out = Tensor::empty(shape, weight.options());
  backend_of(weight).index().embedding(stream_of(weight), out, places, table);
  if (recording(weight)) connect(out, make_intrusive<EmbeddingBackward>(places, weight), weight);
  return out;
}

}  // namespace cohort
