#include "cohort/comm/device_mesh.h"

#include <gmock/gmock.h>

#include "cohort/comm/local_world.h"
#include "cohort/core/error.h"
#include "support/values.h"

namespace cohort::test {
namespace {

using comm::DeviceMesh;
using comm::LocalWorld;
using comm::ProcessGroup;
using Group = std::shared_ptr<ProcessGroup>;

// The numbers that the ranks of a group bring, in its order.
std::vector<float> members(const ProcessGroup& group, int number) {
  const Tensor own = Tensor::full({1}, number);
  const Tensor all = Tensor::empty({group.size()});
  const_cast<ProcessGroup&>(group).all_gather(all, own).wait();
  return all.to_vector<float>();
}

TEST(DeviceMesh, NeighboursDifferInTheLastDimension) {
  LocalWorld(6).run([](const Group& group) {
    const DeviceMesh mesh(group, {{"replicate", 2}, {"shard", 3}});
    const int rank = group->rank();
    EXPECT_EQ(mesh.coordinate("replicate"), rank / 3);
    EXPECT_EQ(mesh.coordinate("shard"), rank % 3);
    EXPECT_EQ(mesh.size("shard"), 3);
    const auto first = static_cast<float>(rank / 3 * 3);
    EXPECT_EQ(members(*mesh.group("shard"), rank),
              (std::vector<float>{first, first + 1, first + 2}));
    const auto place = static_cast<float>(rank % 3);
    EXPECT_EQ(members(*mesh.group("replicate"), rank), (std::vector<float>{place, place + 3}));
  });
}

TEST(DeviceMesh, ASubmeshHoldsTheRanksThatAgreeInTheOtherDimensions) {
  LocalWorld(8).run([](const Group& group) {
    const DeviceMesh mesh(group, {{"replicate", 2}, {"shard", 2}, {"tensor", 2}});
    const DeviceMesh data = mesh.submesh({"shard", "replicate"});
    EXPECT_EQ(data.dimensions().front().name, "replicate") << "in the mesh's own order";
    const auto tensor = static_cast<float>(group->rank() % 2);
    EXPECT_EQ(members(*data.group(), group->rank()),
              (std::vector<float>{tensor, tensor + 2, tensor + 4, tensor + 6}));
    EXPECT_EQ(data.coordinate("shard"), mesh.coordinate("shard"));
    EXPECT_EQ(data.coordinate("replicate"), mesh.coordinate("replicate"));
  });
}

TEST(DeviceMesh, OneDimensionIsTheGroupItself) {
  LocalWorld(3).run([](const Group& group) {
    const DeviceMesh mesh(group, {{"one", 1}, {"shard", 3}});
    EXPECT_EQ(mesh.group("shard"), group);
    EXPECT_EQ(mesh.group("one")->size(), 1);
  });
}

TEST(DeviceMesh, RefusesWhatDoesNotFit) {
  LocalWorld(4).run([](const Group& group) {
    EXPECT_THAT(message_of<InvalidArgument>([&] {
                  DeviceMesh(group, {{"replicate", 2}, {"shard", 3}});
                }),
                testing::HasSubstr("a mesh of 2 (replicate) x 3 (shard) has 6 ranks"));
    EXPECT_THROW(DeviceMesh(group, {}), InvalidArgument);
    EXPECT_THROW(DeviceMesh(nullptr, {{"a", 1}}), InvalidArgument);
    EXPECT_THROW(DeviceMesh(group, {{"a", 2}, {"a", 2}}), InvalidArgument);
    EXPECT_THROW(DeviceMesh(group, {{"a", -2}, {"b", -2}}), InvalidArgument);
    const DeviceMesh mesh(group, {{"replicate", 2}, {"shard", 2}});
    EXPECT_THROW(mesh.group("tensor"), InvalidArgument);
    EXPECT_THROW(mesh.submesh({}), InvalidArgument);
    group->barrier().wait();
  });
}

}  // namespace
}  // namespace cohort::test
