// Holds for every build and machine; what needs GPUs is skipped where there are none.

#include <gmock/gmock.h>

#include <string>

#include "backend/backend.h"
#include "cohort/comm/init.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"

namespace cohort::test {
namespace {

using testing::AnyOf;
using testing::HasSubstr;

bool has_gpu() {
  return backend::cuda_is_built() && backend::cuda_backend().device_count() > 0;
}

// A world of one over NCCL, in a context of its own.
struct World {
  std::shared_ptr<Runtime> runtime = Runtime::make();
  Context context{runtime};
  ContextScope scope{context};
  std::shared_ptr<comm::ProcessGroup> group = comm::init_from_env(
      {.backend = "nccl", .environment = [](const std::string&) { return std::nullopt; }});
};

TEST(NcclGroup, IsRefusedWithTheReasonWhereItCannotBe) {
  if (has_gpu()) GTEST_SKIP() << "this machine has a GPU";
  try {
    const World world;
    FAIL() << "a group without a GPU";
  } catch (const NotSupported& error) {
    EXPECT_THAT(error.what(),
                AnyOf(HasSubstr("built without NCCL"), HasSubstr("cudaGetDeviceCount")));
  }
}

TEST(NcclGroup, ReducesAndBroadcastsInAWorldOfOne) {
  if (!has_gpu()) GTEST_SKIP() << "no usable GPU";
  const World world;
  EXPECT_EQ(world.group->backend(), "nccl");
  Tensor values = Tensor::full({1000}, 3, {.dtype = f32, .device = Device::cuda(0)});
  const comm::Work scaled = world.group->all_reduce(values, comm::ReduceOp::sum, {.scale = 0.5});
  scaled.wait();
  const comm::Work sent = world.group->broadcast(values, 0);
  sent.synchronize();
  world.group->barrier().synchronize();
  EXPECT_EQ(values.to(Device::cpu()).to_vector<float>(), std::vector<float>(1000, 1.5f));
  EXPECT_LE(scaled.times().started, scaled.times().finished);
  EXPECT_EQ(world.group->failure(), nullptr);
}

TEST(NcclGroup, NamesWhatItCannotDoAndGoesOn) {
  if (!has_gpu()) GTEST_SKIP() << "no usable GPU";
  const World world;
  const Tensor values = Tensor::zeros({4}, {.dtype = f32, .device = Device::cuda(0)});
  EXPECT_THROW(world.group->all_gather(values, values), NotSupported);
  world.group->barrier().synchronize();
  EXPECT_EQ(world.group->failure(), nullptr);
}

}  // namespace
}  // namespace cohort::test
