// Holds for every build and machine: without CUDA, with it but without a GPU, and with one. What
// needs a GPU is skipped where there is none.

#include <gmock/gmock.h>

#include <string>
#include <vector>

#include "backend/backend.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"
#include "cohort/ops/cast.h"

namespace cohort::test {
namespace {

using testing::HasSubstr;

int gpu_count() {
  return backend::cuda_is_built() ? backend::cuda_backend().device_count() : 0;
}

const TensorOptions kOnGpu{.dtype = DType::f32, .device = Device::cuda(0)};

std::string refusal_of(Device device) {
  try {
    Tensor::empty({1}, {.dtype = DType::f32, .device = device});
  } catch (const NotSupported& error) {
    return error.what();
  } catch (const InvalidArgument& error) {
    return error.what();
  }
  return "none";
}

TEST(CudaBackend, SaysWhyThereIsNoDevice) {
  if (gpu_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  const std::string text = refusal_of(Device::cuda(0));
  if (backend::cuda_is_built()) {
    EXPECT_THAT(text, HasSubstr("[device] there is no usable device for cuda:0"));
    EXPECT_THAT(text, HasSubstr("cudaGetDeviceCount says '"));
    EXPECT_THAT(text, HasSubstr("driver"));
    EXPECT_FALSE(backend::cuda_backend().why_no_device().empty());
  } else {
    EXPECT_THAT(text, HasSubstr("cohort was built without CUDA"));
    EXPECT_THROW(backend::cuda_backend(), NotSupported);
  }
}

TEST(CudaBackend, RefusesAnIndexBeyondTheDevices) {
  if (gpu_count() == 0) GTEST_SKIP() << "no usable GPU";
  EXPECT_THAT(refusal_of(Device::cuda(gpu_count())), HasSubstr("[device] there is no cuda:"));
}

TEST(CudaBackend, IsRefusedTwiceAlikeAndLeavesTheCpuUsable) {
  if (gpu_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  const Tensor on_cpu = Tensor::full({3}, 2);
  const std::string first = refusal_of(Device::cuda(0));
  EXPECT_EQ(refusal_of(Device::cuda(0)), first);
  EXPECT_THROW(on_cpu.to(Device::cuda(0)), NotSupported);
  EXPECT_EQ(on_cpu.to_vector<float>(), std::vector<float>(3, 2));
}

TEST(CudaBackend, NamesWhatHasNoKernelYet) {
  if (!backend::cuda_is_built()) GTEST_SKIP() << "built without CUDA";
  // The stand-ins throw before they look at the stream.
  const Stream stream = make_inline_stream("unused");
  const backend::Backend& cuda = backend::cuda_backend();
  try {
    cuda.matmul().matmul(stream, {}, {}, {}, false);
    FAIL() << "matmul has a kernel: test it instead";
  } catch (const NotSupported& error) {
    EXPECT_THAT(error.what(), HasSubstr("[matmul] is not available on CUDA yet"));
  }
  EXPECT_THROW(cuda.reduce().sum(stream, {}, {}, false), NotSupported);
  EXPECT_THROW(cuda.conv().avg_pool2d(stream, {}, {}, {}), NotSupported);
  EXPECT_THROW(cuda.norm().softmax(stream, {}, {}, false), NotSupported);
  EXPECT_THROW(cuda.index().embedding(stream, {}, {}, {}), NotSupported);
  EXPECT_THROW(cuda.random().uniform(stream, {}, 0, 1, {}), NotSupported);
  EXPECT_THROW(cuda.optim().sgd(stream, {}, {}, {}, {}), NotSupported);
  EXPECT_THROW(cuda.elementwise().unary(stream, backend::UnaryOp::exp, {}, {}), NotSupported);
}

TEST(CudaBackend, BringsBytesToTheGpuAndBack) {
  if (gpu_count() == 0) GTEST_SKIP() << "no usable GPU";
  const Tensor source = Tensor::arange(1000, {.dtype = DType::f32});
  EXPECT_EQ(source.to(Device::cuda(0)).to(Device::cpu()).to_vector<float>(),
            source.to_vector<float>());
}

TEST(CudaElementwise, GivesTheBitsOfTheCpu) {
  if (gpu_count() == 0) GTEST_SKIP() << "no usable GPU";
  for (const DType dtype : {f32, f64, bf16, f16, i32, i64, u8, boolean}) {
    for (const DType other : {f32, f64, bf16, f16, i32, i64, u8, boolean}) {
      const Tensor a = Tensor::arange(77, {.dtype = dtype});
      const Tensor b = Tensor::full({7, 11}, 3.75, {.dtype = other});
      const auto run = [&](Device device) {
        const Tensor strided = a.to(device).as_strided({7, 11}, {1, 7}, 0);
        Tensor sum = Tensor::empty({7, 11}, {.dtype = other, .device = device});
        sum.copy_(strided);
        backend::backend_for(device.type)
            .elementwise()
            .accumulate(Context::current().stream(device), sum, b.to(device));
        return sum.to(Device::cpu()).to_vector<double>();
      };
      EXPECT_EQ(run(Device::cuda(0)), run(Device::cpu())) << dtype << " and " << other;
    }
  }
}

TEST(CudaStream, OrdersItsWorkAndOthersByEvents) {
  if (gpu_count() == 0) GTEST_SKIP() << "no usable GPU";
  const Stream other = Context::current().runtime()->make_stream(Device::cuda(0), "other");
  Tensor values = Tensor::empty({1 << 20}, kOnGpu);
  values.fill_(1);
  other.wait(Context::current().stream(values.device()).record());
  {
    const StreamScope scope(other);
    values.fill_(2);
  }
  const Event filled = other.record();
  filled.synchronize(Deadline::after(Milliseconds(60'000)));
  EXPECT_TRUE(filled.ready());
  EXPECT_LE(filled.completed_at(), Clock::now());
  EXPECT_EQ(values.to(Device::cpu()).to_vector<float>(), std::vector<float>(1 << 20, 2));
}

}  // namespace
}  // namespace cohort::test
