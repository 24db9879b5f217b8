// What is said of dumps that are made by hand.

#include <gmock/gmock.h>

#include <map>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "tools/made_dump.h"
#include "tools/trace_desync.h"

namespace cohort::tools {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

Verdict explain_all(const std::vector<Dump>& dumps) {
  std::map<int, TraceDump> parsed;
  for (const Dump& dump : dumps) {
    TraceDump one = dump.parsed();
    const int rank = one.rank;
    parsed.emplace(rank, std::move(one));
  }
  return explain(parsed);
}

TEST(Desync, NamesTheRankThatCalledSomethingElse) {
  auto dumps = three(19);
  for (int rank : {0, 2}) {
    dumps[rank].call("broadcast", 4, "buffers", "failed", "i64");
  }
  dumps[1].call("all_reduce", 12, "bucket 3", "failed");
  const Verdict verdict = explain_all(dumps);
  EXPECT_TRUE(verdict.desync);
  EXPECT_EQ(verdict.sentence,
            "rank 1 called all_reduce(sum) of 12 f32 (bucket 3) as its 58th collective of group "
            "'world', where ranks 0 and 2 called broadcast(from rank 0) of 4 i64 (buffers)");
}

TEST(Desync, GuessesThatACollectiveWasSkippedFromTheStepsBefore) {
  auto dumps = three(2);
  for (int rank : {0, 1}) dumps[rank].call("broadcast", 4, "buffers", "failed", "i64");
  dumps[2].call("all_reduce", 12, "bucket 0", "failed");
  EXPECT_THAT(explain_all(dumps).sentence,
              AllOf(StartsWith("rank 2 called all_reduce(sum) of 12 f32 (bucket 0) as its 7th"),
                    HasSubstr("; it looks as if rank 2 skipped broadcast(from rank 0) of 4 i64")));
}

TEST(Desync, GuessesThatACollectiveWasAddedFromWhatFollowed) {
  auto dumps = three(1);
  for (int rank : {0, 1}) {
    dumps[rank].call("broadcast", 4, "buffers", "failed", "i64").call("barrier", 0, "", "failed");
  }
  dumps[2].call("barrier", 0, "mine", "failed");
  dumps[2].call("broadcast", 4, "buffers", "failed", "i64").call("barrier", 0, "", "failed");
  EXPECT_THAT(explain_all(dumps).sentence,
              AllOf(StartsWith("rank 2 called barrier (mine) as its 4th"),
                    HasSubstr("; it looks as if rank 2 added a collective")));
}

TEST(Desync, SeesTwoCollectivesInTheOtherOrder) {
  auto dumps = three(0);
  for (int rank : {0, 2}) {
    dumps[rank].call("all_reduce", 1, "loss", "failed").call("all_reduce", 2, "norm", "failed");
  }
  dumps[1].call("all_reduce", 2, "norm", "failed").call("all_reduce", 1, "loss", "failed");
  EXPECT_THAT(explain_all(dumps).sentence, HasSubstr("; rank 1 calls the two in the other order"));
}

struct Other {
  const char* name;
  std::int64_t elements;
  const char* dtype;
  const char* says;
};
class DesyncOf : public testing::TestWithParam<Other> {};

TEST_P(DesyncOf, TheSameOperationIsNamed) {
  auto dumps = three(1);
  for (int rank : {0, 1}) dumps[rank].call("all_reduce", 10, "", "failed");
  dumps[2].call("all_reduce", GetParam().elements, "", "failed", GetParam().dtype);
  EXPECT_EQ(explain_all(dumps).sentence,
            str("rank 2 called all_reduce(sum) of ", GetParam().says,
                " as its 4th collective of group 'world', where ranks 0 and 1 called "
                "all_reduce(sum) of 10 f32"));
}

INSTANTIATE_TEST_SUITE_P(Other, DesyncOf,
                         testing::Values(Other{"Size", 11, "f32", "11 f32"},
                                         Other{"DType", 10, "f64", "10 f64"}),
                         [](const auto& info) { return info.param.name; });

TEST(Desync, OfSeveralRanksNamesEach) {
  std::vector<Dump> dumps;
  for (int rank = 0; rank < 5; ++rank) {
    dumps.emplace_back(rank, 5).call("all_reduce", rank < 3 ? 1 : rank, "", "failed");
  }
  EXPECT_THAT(explain_all(dumps).sentence,
              StartsWith("rank 3 called all_reduce(sum) of 3 f32, rank 4 called all_reduce(sum) of "
                         "4 f32 as their 1st collective of group 'world', where ranks 0, 1 and 2 "
                         "called all_reduce(sum) of 1 f32"));
}

TEST(Desync, IsTheFirstDifferenceThoughLaterOnesFollow) {
  auto dumps = three(0);
  for (int rank : {0, 1}) {
    dumps[rank].call("all_reduce", 1).call("all_reduce", 2).call("all_reduce", 3, "", "failed");
  }
  dumps[2].call("all_reduce", 1).call("all_reduce", 3).call("all_reduce", 4, "", "failed");
  EXPECT_THAT(explain_all(dumps).sentence, HasSubstr("of 3 f32 as its 2nd collective"));
}

TEST(Desync, IgnoresHowMuchEachRankSendsInAnAllToAll) {
  auto dumps = three(1);
  for (int rank = 0; rank < 3; ++rank) dumps[rank].call("all_to_all", rank);
  EXPECT_FALSE(explain_all(dumps).desync);
}

TEST(Desync, NamesTheRankThatStoppedShortItsLastCollectiveAndTheTimeSince) {
  auto dumps = three(2);
  for (int rank : {0, 2}) dumps[rank].call("barrier", 0, "", "failed");
  const Verdict verdict = explain_all(dumps);
  EXPECT_TRUE(verdict.desync);
  EXPECT_EQ(verdict.sentence,
            "rank 1 has not come to barrier, the 7th collective of group 'world', where ranks 0 "
            "and 2 wait; its last was all_reduce(sum) of 20 f32 (bucket 1), the 6th collective of "
            "group 'world', 59.4 s before");
}

TEST(Desync, OfARankThatLeftOrFailedSaysSo) {
  auto left = three(1);
  for (int rank : {0, 1}) left[rank].call("barrier", 0, "", "failed");
  left[2].left().set("reason", "left");
  EXPECT_THAT(explain_all(left).sentence,
              AllOf(StartsWith("rank 2 has not come to barrier"), HasSubstr("it left the group")));
  auto failed = three(1);
  for (int rank : {0, 1}) failed[rank].call("barrier", 0, "", "failed");
  failed[2].set("exception", "no more data");
  EXPECT_THAT(explain_all(failed).sentence, HasSubstr("and then it failed: no more data"));
}

TEST(Desync, NamesTheOneRankThatGoesOnAlone) {
  auto dumps = three(1);
  dumps[1].call("all_reduce", 9, "extra", "failed");
  EXPECT_THAT(
      explain_all(dumps).sentence,
      StartsWith("rank 1 called all_reduce(sum) of 9 f32 (extra) as its 4th collective of "
                 "group 'world', to which ranks 0 and 2 have not come; rank 0's last was "));
}

TEST(Desync, NamesTheRankWithoutADump) {
  auto dumps = three(1);
  for (int rank : {0, 1}) dumps[rank].call("barrier", 0, "", "failed");
  dumps.pop_back();
  const Verdict verdict = explain_all(dumps);
  EXPECT_TRUE(verdict.desync);
  EXPECT_THAT(verdict.sentence,
              StartsWith("there is no dump of rank 2, for which ranks 0 and 1 wait in barrier, the "
                         "4th collective of group 'world'"));
}

TEST(Desync, SeesTwoGroupsInDifferentOrders) {
  std::vector<Dump> dumps;
  for (int rank = 0; rank < 2; ++rank) {
    Dump& dump = dumps.emplace_back(rank, 2);
    dump.group("a", {0, 1}).group("b", {0, 1});
    dump.on(rank == 0 ? 1 : 2).call("all_reduce", 100, "", "failed");
    // One of them had queued the other group's already.
    if (rank == 0) dump.on(2).call("all_reduce", 100, "", "failed");
  }
  const Verdict verdict = explain_all(dumps);
  EXPECT_TRUE(verdict.desync);
  EXPECT_EQ(verdict.sentence,
            "the ranks use group 'a' and group 'b' in different orders: rank 0 is in "
            "all_reduce(sum) of 100 f32, its 1st collective of group 'a', while rank 1 is in "
            "all_reduce(sum) of 100 f32, its 1st collective of group 'b'");
}

TEST(Desync, FollowsAChainOfWaitsToItsEnd) {
  // Rank 0 waits for 1 in one group, 1 for 2 in another; 2 does nothing.
  std::vector<Dump> dumps;
  for (int rank = 0; rank < 3; ++rank) dumps.emplace_back(rank);
  dumps[0].group("a", {0, 1}).on(1).call("barrier", 0, "", "started");
  dumps[1].group("a", {0, 1}).group("b", {1, 2}).on(2).call("barrier", 0, "", "started");
  dumps[2].group("b", {1, 2});
  EXPECT_THAT(explain_all(dumps).sentence,
              StartsWith("rank 2 has not come to barrier, the 1st collective of group 'b', where "
                         "rank 1 waits; its dump shows no collective"));
}

TEST(Desync, TellsGroupsOfOneNameApartByTheirMembersAndTheirOrder) {
  std::vector<Dump> dumps;
  for (int rank = 0; rank < 4; ++rank) {
    Dump& dump = dumps.emplace_back(rank, 4);
    const std::vector<int> half = rank % 2 == 0 ? std::vector<int>{0, 2} : std::vector<int>{1, 3};
    dump.group("half", half).group("half", half);
    dump.on(1).call("all_reduce", 10 + rank % 2);
    dump.on(2).call("all_reduce", 20 + rank % 2);
  }
  EXPECT_FALSE(explain_all(dumps).desync);
}

TEST(Desync, SeesMessagesThatDoNotMeet) {
  auto dumps = three(1);
  dumps[0].message("send", 1, 1, 5, "failed");
  dumps[1].message("recv", 0, 1, 6, "failed");
  EXPECT_THAT(explain_all(dumps).sentence,
              AllOf(HasSubstr("rank 1 called recv(from rank 0) of 6 f32 as its 1st message"),
                    HasSubstr("where rank 0 called send(to rank 1) of 5 f32")));
  auto alone = three(1);
  alone[0].message("send", 1, 1, 100'000, "failed");
  EXPECT_THAT(explain_all(alone).sentence,
              StartsWith("rank 1 has not come to send(to rank 1) of 100000 f32"));
  auto crossed = three(1);
  crossed[0].message("send", 1, 1, 100'000, "failed");
  crossed[1].message("send", 0, 1, 100'000, "failed");
  EXPECT_THAT(explain_all(crossed).sentence, StartsWith("two ranks wait for each other: rank 0"));
}

TEST(NoDesync, IsSaidWhereAllCalledTheSame) {
  const Verdict verdict = explain_all(three(4));
  EXPECT_FALSE(verdict.desync);
  EXPECT_EQ(verdict.sentence,
            "no desync: ranks 0, 1 and 2 called the same collectives; the last was all_reduce(sum) "
            "of 20 f32 (bucket 1), the 12th collective of group 'world'");
}

TEST(NoDesync, IsSaidWithTheErrorWhenTheRanksAgreedAndYetFailed) {
  auto dumps = three(1);
  for (Dump& dump : dumps) {
    dump.call("all_gather", 3, "", "failed");
    dump.json()["groups"][0]["failure"] = "with different counts per rank";
  }
  const Verdict verdict = explain_all(dumps);
  EXPECT_FALSE(verdict.desync);
  EXPECT_THAT(verdict.sentence, HasSubstr("group 'world' failed: with different counts per rank"));
}

TEST(NoDesync, IsSaidOfAJobThatRuns) {
  auto dumps = three(1);
  for (int rank : {0, 1}) dumps[rank].at(59.8).call("barrier", 0, "", "started");
  for (Dump& dump : dumps) dump.set("reason", "signal");
  const Verdict verdict = explain_all(dumps);
  EXPECT_FALSE(verdict.desync);
  EXPECT_THAT(verdict.sentence,
              StartsWith("no desync: rank 2 is on the way to barrier, the 4th collective"));
  // After more than a second it is no coincidence any more.
  for (int rank : {0, 1}) dumps[rank].set("written_ns", at_second(62));
  EXPECT_TRUE(explain_all(dumps).desync);
}

TEST(NoDesync, IsNotSaidOfRanksWhoseOldRecordsWereOverwritten) {
  auto dumps = three(5);
  Json& records = dumps[0].json()["records"];
  records.erase(records.begin(), records.begin() + 9);
  dumps[1].call("barrier", 0, "", "started");
  dumps[2].call("barrier", 0, "", "started");
  dumps[0].call("barrier", 0, "", "started");
  EXPECT_FALSE(explain_all(dumps).desync);
}

TEST(NoDesync, StillSaysThatADumpIsMissing) {
  auto dumps = three(1);
  dumps.erase(dumps.begin());
  EXPECT_THAT(explain_all(dumps).sentence,
              AllOf(StartsWith("no desync"), HasSubstr("there is no dump of rank 0")));
}

}  // namespace
}  // namespace cohort::tools
