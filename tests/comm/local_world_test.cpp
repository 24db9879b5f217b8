#include "cohort/comm/local_world.h"

#include <gmock/gmock.h>

#include <atomic>
#include <set>

#include "cohort/core/error.h"
#include "comm/collective_values.h"

namespace cohort::test {
namespace {

using comm::LocalWorld;
using comm::ProcessGroup;
using Group = std::shared_ptr<ProcessGroup>;
using testing::HasSubstr;

TEST(LocalWorld, GivesEachRankARuntimeOfItsOwn) {
  std::mutex mutex;
  std::set<std::shared_ptr<Runtime>> runtimes;  // kept, so that no address is used twice
  std::set<std::uint64_t> subsequences;
  LocalWorld(4).run([&](const Group& group) {
    const std::lock_guard lock(mutex);
    EXPECT_EQ(Context::current().runtime()->rank(), group->rank());
    runtimes.insert(Context::current().runtime());
    subsequences.insert(Context::current().generator.state().subsequence);
  });
  EXPECT_EQ(runtimes.size(), 4u);
  EXPECT_EQ(subsequences.size(), 4u);
}

TEST(LocalWorld, NeedsARank) {
  EXPECT_THROW(LocalWorld(0), InvalidArgument);
}

TEST(LocalWorld, RethrowsTheErrorThatCameFirstNotItsEchoes) {
  const std::string message = message_of<InvalidArgument>([] {
    LocalWorld(4).run([](const Group& group) {
      const Group part = group->split(0);
      if (group->rank() == 2) throw InvalidArgument("the data of rank 2 is bad");
      part->barrier().wait();
      group->barrier().wait();
    });
  });
  EXPECT_EQ(message, "the data of rank 2 is bad");
}

TEST(LocalWorld, TellsTheOtherRanksTheTextOfAnException) {
  std::string told;
  EXPECT_THROW(LocalWorld(2).run([&](const Group& group) {
    if (group->rank() == 1) throw std::runtime_error("the loader threw");
    told = message_of<PeerError>([&] { group->barrier().wait(); });
  }),
               std::runtime_error);
  EXPECT_THAT(told, HasSubstr("rank 1 failed: the loader threw"));
}

TEST(LocalWorld, TellsTheTextAlsoThroughAGroupThatUnwinds) {
  std::string told;
  EXPECT_THROW(LocalWorld(2).run([&](const Group& group) {
    const Group part = group->split(0, 0, "part");
    if (group->rank() == 1) throw std::runtime_error("the loader threw");
    told = message_of<PeerError>([&] { part->barrier().wait(); });
  }),
               std::runtime_error);
  EXPECT_THAT(told, HasSubstr("rank 1 failed: the loader threw"));
}

TEST(LocalWorld, CanRunAgain) {
  const LocalWorld world(3);
  for (int i = 0; i < 3; ++i) {
    std::atomic<int> sum{0};
    world.run([&](const Group& group) {
      group->barrier().wait();
      sum += group->rank();
    });
    EXPECT_EQ(sum, 3);
  }
}

}  // namespace
}  // namespace cohort::test
