#include "backend/cuda/families.h"

#include "cohort/core/error.h"

namespace cohort::backend::cuda {
namespace {

class CudaReduce final : public ReduceKernels {
 public:
  void sum(const Stream&, const View&, const View&, bool, double) const override {
    not_filled("sum");
  }
  void max(const Stream&, const View&, const View&, const View&, int) const override {
    not_filled("max");
  }
  void max_grad(const Stream&, const View&, const View&, const View&, int) const override {
    not_filled("max_grad");
  }
  void add_squares(const Stream&, const View&, const View&) const override {
    not_filled("add_squares");
  }
  void root_of_sum(const Stream&, const View&, const View&) const override {
    not_filled("root_of_sum");
  }
};

class CudaMatmul final : public MatmulKernels {
 public:
  void matmul(const Stream&, const View&, const View&, const View&, bool) const override {
    not_filled("matmul");
  }
  void linear(const Stream&, const View&, const View&, const View&, const View&) const override {
    not_filled("linear");
  }
  void sum_rows(const Stream&, const View&, const View&, bool) const override {
    not_filled("sum_rows");
  }
};

class CudaConv final : public ConvKernels {
 public:
  void conv2d(const Stream&, const View&, const View&, const View&, const View&,
              const ConvSpec&) const override {
    not_filled("conv2d");
  }
  void conv2d_backward_data(const Stream&, const View&, const View&, const View&,
                            const ConvSpec&) const override {
    not_filled("conv2d_backward_data");
  }
  void conv2d_backward_weight(const Stream&, const GradView&, const GradView&, const View&,
                              const View&, const ConvSpec&) const override {
    not_filled("conv2d_backward_weight");
  }
  void max_pool2d(const Stream&, const View&, const View&, const View&,
                  const WindowSpec&) const override {
    not_filled("max_pool2d");
  }
  void max_pool2d_backward(const Stream&, const View&, const View&, const View&) const override {
    not_filled("max_pool2d_backward");
  }
  void avg_pool2d(const Stream&, const View&, const View&, const WindowSpec&) const override {
    not_filled("avg_pool2d");
  }
  void avg_pool2d_backward(const Stream&, const View&, const View&,
                           const WindowSpec&) const override {
    not_filled("avg_pool2d_backward");
  }
};

class CudaNorm final : public NormKernels {
 public:
  void softmax(const Stream&, const View&, const View&, bool) const override {
    not_filled("softmax");
  }
  void softmax_backward(const Stream&, const View&, const View&, const View&, bool) const override {
    not_filled("softmax_backward");
  }
  void batch_norm(const Stream&, const View&, const View&, const View&, const View&, const View&,
                  const View&, const RunningStats&, bool, double) const override {
    not_filled("batch_norm");
  }
  void batch_norm_backward(const Stream&, const View&, const GradView&, const GradView&,
                           const View&, const View&, const View&, const View&, const View&,
                           bool) const override {
    not_filled("batch_norm_backward");
  }
  void batch_norm_moments(const Stream&, const View&, const View&) const override {
    not_filled("batch_norm_moments");
  }
  void batch_norm_backward_sums(const Stream&, const View&, const GradView&, const GradView&,
                                const View&, const View&, const View&, const View&) const override {
    not_filled("batch_norm_backward_sums");
  }
  void batch_norm_backward_input(const Stream&, const View&, const View&, const View&, const View&,
                                 const View&, const View&, const View&, double) const override {
    not_filled("batch_norm_backward_input");
  }
  void layer_norm(const Stream&, const View&, const View&, const View&, const View&, const View&,
                  const View&, double) const override {
    not_filled("layer_norm");
  }
  void layer_norm_backward(const Stream&, const View&, const GradView&, const GradView&,
                           const View&, const View&, const View&, const View&,
                           const View&) const override {
    not_filled("layer_norm_backward");
  }
};

class CudaIndex final : public IndexKernels {
 public:
  void embedding(const Stream&, const View&, const View&, const View&) const override {
    not_filled("embedding");
  }
  void embedding_backward(const Stream&, const GradView&, const View&, const View&) const override {
    not_filled("embedding_backward");
  }
  void cross_entropy(const Stream&, const View&, const View&, const View&, const View&, const View&,
                     const CrossEntropySpec&) const override {
    not_filled("cross_entropy");
  }
  void cross_entropy_backward(const Stream&, const View&, const View&, const View&, const View&,
                              const View&, const View&, const CrossEntropySpec&) const override {
    not_filled("cross_entropy_backward");
  }
};

class CudaRandom final : public RandomKernels {
 public:
  void uniform(const Stream&, const View&, double, double, const PhiloxState&) const override {
    not_filled("uniform");
  }
  void normal(const Stream&, const View&, double, double, const PhiloxState&) const override {
    not_filled("normal");
  }
  void dropout(const Stream&, const View&, const View&, double, const PhiloxState&) const override {
    not_filled("dropout");
  }
};

class CudaOptim final : public OptimKernels {
 public:
  void sgd(const Stream&, const View&, const View&, const View&, const SgdParams&) const override {
    not_filled("sgd");
  }
  void adam(const Stream&, const View&, const View&, const View&, const View&, const View&,
            const AdamParams&) const override {
    not_filled("adam");
  }
  void unscale(const Stream&, const View&, const View&, double) const override {
    not_filled("unscale");
  }
};

}  // namespace

void not_filled(const char* operation) {
  throw NotSupported(str("[", operation,
                         "] is not available on CUDA yet; bring the operands over with "
                         "to(Device::cpu()), or see docs/cuda.md for what is"));
}

const ReduceKernels& reduce_kernels() {
  static const CudaReduce instance;
  return instance;
}

const MatmulKernels& matmul_kernels() {
  static const CudaMatmul instance;
  return instance;
}

const ConvKernels& conv_kernels() {
  static const CudaConv instance;
  return instance;
}

const NormKernels& norm_kernels() {
  static const CudaNorm instance;
  return instance;
}

const IndexKernels& index_kernels() {
  static const CudaIndex instance;
  return instance;
}

const RandomKernels& random_kernels() {
  static const CudaRandom instance;
  return instance;
}

const OptimKernels& optim_kernels() {
  static const CudaOptim instance;
  return instance;
}

}  // namespace cohort::backend::cuda
