#include "cohort/comm/rendezvous.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <future>
#include <thread>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::future<void> join_later(MemoryStore& store, int rank, int world_size,
                             Milliseconds timeout = 20s) {
  return std::async(std::launch::async, [&store, rank, world_size, timeout] {
    join(store, "world", rank, world_size, timeout);
  });
}

TEST(Join, ReturnsWhenAllRanksAreThere) {
  MemoryStore store;
  auto first = join_later(store, 0, 3);
  auto third = join_later(store, 2, 3);
  EXPECT_EQ(first.wait_for(50ms), std::future_status::timeout);
  join(store, "world", 1, 3, 20s);
  first.get();
  third.get();
}

TEST(Join, SaysWhoJoinedAndWhoIsMissing) {
  MemoryStore store;
  auto other = join_later(store, 2, 4);
  ASSERT_EQ(store.get("join/world/rank/2").substr(0, 7), "process");
  EXPECT_THAT(
      [&] { join(store, "world", 0, 4, 50ms); },
      ThrowsMessage<TimeoutError>(AllOf(HasSubstr("2 of 4"), HasSubstr("0, 2; missing: 1, 3"))));
  join_later(store, 1, 4, 1ms);
  join(store, "world", 3, 4, 20s);  // the stragglers complete it for those who still wait
  other.get();
}

TEST(Join, ARankClaimedTwiceFailsEveryone) {
  MemoryStore store;
  auto first = join_later(store, 1, 3);
  store.get("join/world/count");
  EXPECT_THAT([&] { join(store, "world", 1, 3, 20s); },
              ThrowsMessage<MismatchError>(HasSubstr("rank 1 was claimed twice")));
  EXPECT_THAT([&] { first.get(); },
              ThrowsMessage<MismatchError>(HasSubstr("rank 1 was claimed twice")));
}

TEST(Join, DifferentWorldSizesFailEveryone) {
  MemoryStore store;
  auto first = join_later(store, 0, 2);
  store.get("join/world/count");
  EXPECT_THAT([&] { join(store, "world", 1, 3, 20s); },
              ThrowsMessage<MismatchError>(AllOf(HasSubstr("said 2"), HasSubstr("says 3"))));
  EXPECT_THROW(first.get(), MismatchError);
}

TEST(Join, ARankOutsideTheWorldIsInvalid) {
  MemoryStore store;
  EXPECT_THROW(join(store, "world", 2, 2, 1s), InvalidArgument);
  EXPECT_THROW(join(store, "world", -1, 2, 1s), InvalidArgument);
  EXPECT_THROW(join(store, "world", 0, 0, 1s), InvalidArgument);
}

TEST(OpenStore, RankZeroHostsUnlessTheLauncherDoes) {
  LaunchEnv env;
  env.world_size = 2;
  env.job_id = "job";
  env.secret = "secret";
  { env.master_port = StoreServer({}).port(); }
  const auto host = open_store(env, 20s);
  env.rank = 1;
  open_store(env, 20s)->set("key", "value");
  EXPECT_EQ(host->get("key"), "value");
  env.rank = 0;
  EXPECT_THROW(open_store(env, 20s), StoreError);  // the port is taken
  env.store_hosted = true;
  EXPECT_EQ(open_store(env, 20s)->get("key"), "value");
}

TEST(OpenStore, AWorldOfOneNeedsNoPort) {
  const auto store = open_store(LaunchEnv{}, 1s);
  store->set("key", "value");
  join(*store, "world", 0, 1, 1s);
}

}  // namespace
}  // namespace cohort::comm
