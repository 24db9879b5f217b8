#include "backend/meta/families.h"
#include "backend/reduce_kernels.h"

namespace cohort::backend::meta {
namespace {

class MetaReduce final : public ReduceKernels {
 public:
  void sum(const Stream&, const View&, const View&, bool, double) const override {}
  void max(const Stream&, const View&, const View&, const View&, int) const override {}
  void max_grad(const Stream&, const View&, const View&, const View&, int) const override {}
  void add_squares(const Stream&, const View&, const View&) const override {}
  void root_of_sum(const Stream&, const View&, const View&) const override {}
};

}  // namespace

const ReduceKernels& reduce_kernels() {
  static const MetaReduce instance;
  return instance;
}

}  // namespace cohort::backend::meta
