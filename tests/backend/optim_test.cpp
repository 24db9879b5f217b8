// The optimizer kernels against ten steps of PyTorch's optimizers, on every instruction set.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/optim_kernels.h"
#include "cohort/core/context.h"
#include "support/instruction_sets.h"
#include "support/reference.h"
#include "support/values.h"

namespace cohort::backend {
namespace {

const OptimKernels& kernels() {
  return cpu_backend().optim();
}
const Stream& stream() {
  return Context::current().stream(Device::cpu());
}

// Row `i` of a matrix, or a copy of a vector, as `dtype`.
Tensor row(const Tensor& matrix, std::int64_t i, DType dtype) {
  const std::int64_t width = matrix.size(-1);
  const Tensor window = matrix.as_strided({width}, {1}, i * width);
  return Tensor::empty({width}, {dtype}).copy_(window);
}

struct SgdCase {
  const char* name;
  SgdParams params;
};

struct AdamCase {
  const char* name;
  AdamParams params;
  bool amsgrad = false;
};

const SgdCase kSgd[] = {
    {"sgd", {.lr = 0.1}},
    {"sgd.decay", {.lr = 0.1, .weight_decay = 0.05}},
    {"sgd.momentum", {.lr = 0.1, .momentum = 0.9}},
    {"sgd.dampening", {.lr = 0.1, .momentum = 0.9, .dampening = 0.3, .weight_decay = 0.05}},
    {"sgd.nesterov", {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.05, .nesterov = true}},
    {"sgd.maximize", {.lr = 0.1, .momentum = 0.9, .maximize = true}},
};

const AdamCase kAdam[] = {
    {"adam", {.lr = 0.01}},
    {"adam.decay", {.lr = 0.01, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1}},
    {"adam.amsgrad", {.lr = 0.01}, true},
    {"adam.maximize", {.lr = 0.01, .maximize = true}},
    {"adamw", {.lr = 0.01, .weight_decay = 0.01, .decoupled = true}},
    {"adamw.decay",
     {.lr = 0.01,
      .beta1 = 0.8,
      .beta2 = 0.95,
      .eps = 1e-6,
      .weight_decay = 0.1,
      .decoupled = true}},
    {"adamw.amsgrad", {.lr = 0.01, .weight_decay = 0.1, .decoupled = true}, true},
};

class OptimKernel : public test::OnEveryInstructionSet {
 protected:
  // Runs step(param, grad, number) ten times and compares every step's parameters.
  template <typename Step>
  void expect_steps(const std::string& name, DType dtype, Step&& step) {
    const Tensor want = reference_.get(name + (dtype == f64 ? ".f64" : ""));
    const Tensor param = row(reference_.get("start"), 0, dtype);
    for (int i = 0; i < 10; ++i) {
      step(param, row(reference_.get("gradients"), i, dtype), i + 1);
      EXPECT_TRUE(test::close(param, row(want, i, dtype), dtype == f64 ? 1e-13 : 2e-6,
                              dtype == f64 ? 1e-14 : 1e-6))
          << name << " after step " << i + 1;
    }
  }

  test::Reference reference_{"optim"};
};
INSTANTIATE_TEST_SUITE_P(Targets, OptimKernel, testing::ValuesIn(test::instruction_sets()),
                         test::instruction_set_name);

AdamParams at_step(AdamParams params, int step) {
  params.bias_correction1 = 1 - std::pow(params.beta1, step);
  params.bias_correction2 = 1 - std::pow(params.beta2, step);
  return params;
}

TEST_P(OptimKernel, SgdTakesPyTorchsSteps) {
  for (const auto& [name, given] : kSgd) {
    for (const DType dtype : {f32, f64}) {
      const Tensor buffer = Tensor::full({7}, NAN, {dtype});  // the first step must not read it
      SgdParams params = given;
      expect_steps(name, dtype, [&](const Tensor& param, const Tensor& grad, int step) {
        params.first_step = step == 1;
        kernels().sgd(stream(), param, grad, params.momentum != 0 ? View(buffer) : View(), params);
      });
    }
  }
}

TEST_P(OptimKernel, AdamTakesPyTorchsSteps) {
  for (const auto& [name, given, amsgrad] : kAdam) {
    for (const DType dtype : {f32, f64}) {
      const Tensor m = Tensor::zeros({7}, {dtype});
      const Tensor v = Tensor::zeros({7}, {dtype});
      const Tensor max_v = Tensor::zeros({7}, {dtype});
      expect_steps(name, dtype, [&](const Tensor& param, const Tensor& grad, int step) {
        kernels().adam(stream(), param, grad, m, v, amsgrad ? View(max_v) : View(),
                       at_step(given, step));
      });
    }
  }
}

TEST_P(OptimKernel, GradientsAreScaledBeforeAnythingElse) {
  for (const auto& [name, given] : kSgd) {
    const Tensor buffer = Tensor::empty({7});
    SgdParams params = given;
    params.grad_scale = 0.25;  // a power of two: scaling is exact
    expect_steps(name, f32, [&](const Tensor& param, const Tensor& grad, int step) {
      params.first_step = step == 1;
      const Tensor larger = Tensor::empty({7});
      cpu_backend().elementwise().unary(stream(), UnaryOp::mul_scalar, larger, grad, {.p = 4});
      kernels().sgd(stream(), param, larger, params.momentum != 0 ? View(buffer) : View(), params);
    });
  }
}

TEST_P(OptimKernel, UpdatesOfAPieceAreThoseOfTheWhole) {
  constexpr std::int64_t kCount = 1500;
  for (const DType dtype : {f32, f64, bf16}) {
    const DType state = dtype == f64 ? f64 : f32;
    const auto make = [&](std::uint64_t seed, DType type) {
      return Tensor::empty({kCount}, {type}).copy_(test::values({kCount}, f32, seed));
    };
    const auto update = [&](const std::vector<Tensor>& t, std::int64_t first, std::int64_t count) {
      const auto part = [&](const Tensor& x) { return View(x.as_strided({count}, {1}, first)); };
      kernels().adam(stream(), part(t[0]), part(t[1]), part(t[2]), part(t[3]), View(),
                     at_step({.lr = 0.1, .weight_decay = 0.1}, 3));
      kernels().sgd(stream(), part(t[0]), part(t[1]), part(t[2]),
                    {.lr = 0.1, .momentum = 0.9, .nesterov = true});
    };
    const auto tensors = [&] {
      std::vector<Tensor> t = {make(1, dtype), make(2, dtype), make(3, state), make(4, state)};
      cpu_backend().elementwise().unary(stream(), UnaryOp::abs, t[3], t[3], {});
      return t;
    };
    const auto whole = tensors();
    const auto pieces = tensors();
    update(whole, 0, kCount);
    for (std::int64_t first = 0, count = 1; first < kCount; first += count, count += 5) {
      count = std::min(count, kCount - first);
      update(pieces, first, count);
    }
    for (std::size_t k : {0u, 2u, 3u}) EXPECT_TRUE(test::same_bits(pieces[k], whole[k])) << dtype;
  }
}

}  // namespace
}  // namespace cohort::backend
