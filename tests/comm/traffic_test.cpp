// What a group says a collective will move is what it then counts.

#include <gtest/gtest.h>

#include "cohort/comm/link_delay.h"
#include "comm/worlds.h"

namespace cohort::test {
namespace {

using comm::Operation;
using comm::ProcessGroup;
using comm::ReduceOp;
using Group = std::shared_ptr<ProcessGroup>;

class Traffic : public testing::TestWithParam<Over> {};
INSTANTIATE_TEST_SUITE_P(Over, Traffic, testing::ValuesIn(transports()),
                         [](const auto& info) { return std::string(name(info.param)); });

void check_one(ProcessGroup& group, Operation operation, DType dtype, std::int64_t elements,
               bool symmetric, bool in_place) {
  const TensorOptions options{.dtype = dtype};
  const Tensor large =
      symmetric ? group.allocate({elements}, options) : Tensor::empty({elements}, options);
  large.detach().zero_();
  const std::int64_t part = elements / group.size();
  const Tensor own = in_place ? large.as_strided({part}, {1}, part * group.rank())
                              : Tensor::zeros({part}, options);
  const std::int64_t before = group.stats().of(operation).moved_bytes;
  if (operation == Operation::all_reduce) group.all_reduce(large).wait();
  if (operation == Operation::all_gather) group.all_gather(large, own).wait();
  if (operation == Operation::reduce_scatter) group.reduce_scatter(own, large).wait();
  EXPECT_EQ(group.stats().of(operation).moved_bytes - before,
            group.expected_bytes(operation, dtype, elements, symmetric, in_place))
      << operation << " of " << elements << ' ' << dtype << " on " << group.size() << " ranks, "
      << (symmetric ? "symmetric" : "ordinary") << (in_place ? ", in place" : "");
}

TEST_P(Traffic, IsWhatWasExpected) {
  for (const int world : {1, 2, 3, 4}) {
    World(GetParam(), world).run([&](const Group& group) {
      // From less than a line to several pieces of staging.
      for (const std::int64_t part : {1, 16, 700, 5'000, 700'001}) {
        for (const DType dtype : {f32, bf16}) {
          for (const bool symmetric : {false, true}) {
            if (symmetric && world == 1) continue;
            const std::int64_t elements = part * world;
            check_one(*group, Operation::all_reduce, dtype, elements, symmetric, false);
            check_one(*group, Operation::reduce_scatter, dtype, elements, symmetric, false);
            for (const bool in_place : {false, true}) {
              check_one(*group, Operation::all_gather, dtype, elements, symmetric, in_place);
            }
          }
        }
      }
      EXPECT_EQ(group->expected_bytes(Operation::barrier, u8, 0), 0);
      EXPECT_THROW(group->expected_bytes(Operation::split, u8, 0), NotSupported);
    });
  }
}

TEST(LinkDelay, MakesEachCollectiveTakeSoMuchLonger) {
  World(Over::shm, 2).run([](const Group& group) {
    constexpr std::chrono::microseconds kDelay{20'000};
    comm::set_link_delay(kDelay);
    const auto start = Clock::now();
    for (int i = 0; i < 3; ++i) group->all_reduce(Tensor::ones({4})).synchronize();
    EXPECT_GE(Clock::now() - start, 3 * kDelay);
    comm::set_link_delay(std::chrono::microseconds(0));
    EXPECT_THROW(comm::set_link_delay(std::chrono::microseconds(-1)), InvalidArgument);
  });
}

}  // namespace
}  // namespace cohort::test
