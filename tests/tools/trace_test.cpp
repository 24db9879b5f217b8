// `cohort trace desync` on dumps that are made by hand: what it says, and what it refuses.

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "cohort/core/error.h"
#include "support/child_process.h"
#include "tools/trace_desync.h"
#include "tools/trace_dump.h"

namespace cohort::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr std::int64_t kStart = 1'700'000'000'000'000'000;

std::int64_t at_second(double second) {
  return kStart + static_cast<std::int64_t>(second * 1e9);
}

// A rank's dump, written call by call. Each call takes 0.1 s on a clock of the dump's own.
class Dump {
 public:
  explicit Dump(int rank, int size = 3) : rank_(rank) {
    json_ = {{"format", "cohort-flight-record"},
             {"version", 1},
             {"rank", rank},
             {"pid", 100 + rank},
             {"host", "here"},
             {"reason", "failure"},
             {"exception", nullptr},
             {"written_ns", at_second(60)},
             {"size", 1024},
             {"recorded", 0},
             {"groups", Json::array()},
             {"records", Json::array()}};
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(r);
    group("world", ranks);
  }

  Dump& group(const std::string& name, const std::vector<int>& ranks) {
    const auto self = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
    json_["groups"].push_back({{"id", json_["groups"].size()},
                               {"name", name},
                               {"backend", "shm"},
                               {"rank", self},
                               {"ranks", ranks},
                               {"collectives", 0},
                               {"left", false},
                               {"failure", nullptr}});
    return *this;
  }

  // A collective of group number `group_`, finished unless a state is given.
  Dump& call(const std::string& operation, std::int64_t elements, const std::string& owner = "",
             const std::string& state = "finished", const std::string& dtype = "f32") {
    Json& collectives = json_["groups"][group_]["collectives"];
    collectives = collectives.get<int>() + 1;
    return add(operation, elements, owner, state, dtype, collectives);
  }
  Dump& message(const std::string& operation, int peer, int sequence, std::int64_t elements,
                const std::string& state = "finished") {
    add(operation, elements, "", state, "f32", sequence);
    json_["records"].back()["peer"] = peer;
    return *this;
  }
  Dump& on(int group) {
    group_ = group;
    return *this;
  }
  Dump& at(double second) {
    now_ = second;
    return *this;
  }
  Dump& set(const std::string& key, const Json& value) {
    json_[key] = value;
    return *this;
  }
  Dump& left() {
    json_["groups"][group_]["left"] = true;
    return *this;
  }
  Json& json() { return json_; }
  TraceDump parsed() const { return parse_dump(json_.dump(), str("rank", rank_)); }

 private:
  Dump& add(const std::string& operation, std::int64_t elements, const std::string& owner,
            const std::string& state, const std::string& dtype, const Json& sequence) {
    now_ += 0.1;
    const bool reduces = operation == "all_reduce";
    json_["records"].push_back(
        {{"group", group_},
         {"sequence", sequence},
         {"operation", operation},
         {"reduce", reduces ? Json("sum") : Json(nullptr)},
         {"dtype", dtype},
         {"elements", elements},
         {"peer", operation == "broadcast" ? Json(0) : Json(nullptr)},
         {"scale", 1.0},
         {"owner", owner},
         {"state", state},
         {"enqueued_ns", at_second(now_)},
         {"started_ns", state == "enqueued" ? Json(nullptr) : Json(at_second(now_))},
         {"finished_ns", state == "finished" ? Json(at_second(now_ + 0.05))
                         : state == "failed" ? Json(at_second(60))
                                             : Json(nullptr)}});
    return *this;
  }

  int rank_;
  int group_ = 0;
  double now_ = 0;
  Json json_;
};

Verdict explain_all(const std::vector<Dump>& dumps) {
  std::map<int, TraceDump> parsed;
  for (const Dump& dump : dumps) {
    TraceDump one = dump.parsed();
    const int rank = one.rank;
    parsed.emplace(rank, std::move(one));
  }
  return explain(parsed);
}

// Three ranks with one history of training steps.
std::vector<Dump> three(int steps) {
  std::vector<Dump> dumps;
  for (int rank = 0; rank < 3; ++rank) {
    Dump& dump = dumps.emplace_back(rank);
    for (int step = 0; step < steps; ++step) {
      dump.call("broadcast", 4, "buffers", "finished", "i64");
      dump.call("all_reduce", 12, "bucket 0").call("all_reduce", 20, "bucket 1");
    }
  }
  return dumps;
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

// ---- what is refused

std::string refusal_of(const std::string& text) {
  try {
    parse_dump(text, "some.json");
  } catch (const FileError& error) {
    return error.what();
  }
  return {};
}

TEST(BadDump, CutAnywhereIsRefused) {
  const std::string text = three(1)[1].json().dump();
  for (std::size_t size = 0; size < text.size(); ++size) {
    ASSERT_THAT(refusal_of(text.substr(0, size)), StartsWith("[trace] some.json: ")) << size;
  }
  EXPECT_EQ(refusal_of(text), "");
}

TEST(BadDump, WithAnyByteChangedIsReadOrRefused) {
  const std::string text = three(1)[1].json().dump();
  for (std::size_t i = 0; i < text.size(); ++i) {
    for (const char c : {'\0', '"', '9', '-', '{', ']', '\xff'}) {
      std::string changed = text;
      changed[i] = c;
      try {
        const TraceDump dump = parse_dump(changed, "some.json");
        explain({{dump.rank, dump}});
      } catch (const FileError& error) {
        ASSERT_THAT(error.what(), StartsWith("[trace] some.json: "));
      }
    }
  }
}

struct Spoiled {
  const char* name;
  void (*spoil)(Json& dump);
  const char* says;
};
class BadDumpOf : public testing::TestWithParam<Spoiled> {};

TEST_P(BadDumpOf, IsRefusedByName) {
  Dump dump(1);
  dump.call("all_reduce", 4);
  GetParam().spoil(dump.json());
  EXPECT_THAT(refusal_of(dump.json().dump()),
              AllOf(StartsWith("[trace] some.json: "), HasSubstr(GetParam().says)));
}

INSTANTIATE_TEST_SUITE_P(
    With, BadDumpOf,
    testing::Values(
        Spoiled{"AnotherFormat", [](Json& d) { d["format"] = "pickle"; }, "no flight record"},
        Spoiled{"NoFormat", [](Json& d) { d.erase("format"); }, "no flight record"},
        Spoiled{"AListForAnObject", [](Json& d) { d = Json::array({d}); }, "no object"},
        Spoiled{"ANewerVersion", [](Json& d) { d["version"] = 2; }, "version 2"},
        Spoiled{"NoVersion", [](Json& d) { d.erase("version"); }, "no 'version'"},
        Spoiled{"ANegativeRank", [](Json& d) { d["rank"] = -1; }, "'rank' is no whole number"},
        Spoiled{"AHugeRank", [](Json& d) { d["rank"] = std::uint64_t{1} << 63; }, "'rank'"},
        Spoiled{"ARankWithAFraction", [](Json& d) { d["rank"] = 1.5; }, "'rank'"},
        Spoiled{"AnotherRanksGroups", [](Json& d) { d["rank"] = 2; }, "is not rank 2"},
        Spoiled{"GroupsThatAreNoList", [](Json& d) { d["groups"] = 3; }, "'groups' is no list"},
        Spoiled{"AGroupTwice", [](Json& d) { d["groups"].push_back(d["groups"][0]); }, "twice"},
        Spoiled{"AMemberTwice",
                [](Json& d) {
                  d["groups"][0]["ranks"] = {0, 1, 0};
                },
                "twice"},
        Spoiled{"AnEmptyGroup", [](Json& d) { d["groups"][0]["ranks"] = Json::array(); },
                "'ranks'"},
        Spoiled{"ARecordOfNoGroup", [](Json& d) { d["records"][0]["group"] = 9; }, "no group 9"},
        Spoiled{"ARecordThatIsNull", [](Json& d) { d["records"][0] = nullptr; }, "record 0"},
        Spoiled{"SequenceZero", [](Json& d) { d["records"][0]["sequence"] = 0; }, "'sequence'"},
        Spoiled{"AnUnknownState", [](Json& d) { d["records"][0]["state"] = "lost"; }, "'lost'"},
        Spoiled{"NegativeElements", [](Json& d) { d["records"][0]["elements"] = -4; },
                "'elements'"},
        Spoiled{"APeerOutsideItsGroup", [](Json& d) { d["records"][0]["peer"] = 3; }, "'peer'"},
        Spoiled{"AMessageToNobody", [](Json& d) { d["records"][0]["operation"] = "send"; },
                "'peer'"},
        Spoiled{"ATextForATime", [](Json& d) { d["records"][0]["started_ns"] = "now"; },
                "'started_ns'"}),
    [](const auto& info) { return info.param.name; });

TEST(BadDump, NestedDeeplyIsRefusedWithoutACrash) {
  EXPECT_THAT(refusal_of(std::string(1'000'000, '[')), HasSubstr("truncated, or no JSON"));
  EXPECT_THAT(refusal_of(std::string(200'000, '[') + std::string(200'000, ']')),
              HasSubstr("no object"));
}

TEST(BadDump, CannotWriteControlCharactersToTheTerminal) {
  auto dumps = three(0);
  for (int rank : {0, 1}) dumps[rank].call("all_reduce", 1, "\x1b[31mred\n", "failed");
  dumps[2].call("all_reduce", 2, "", "failed");
  EXPECT_THAT(explain_all(dumps).sentence, AllOf(Not(HasSubstr("\x1b")), HasSubstr("?[31mred?")));
}

// ---- the command

class TraceCommand : public testing::Test {
 protected:
  TraceCommand() { fs::create_directories(folder_); }
  ~TraceCommand() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name) << text;
    return folder_ / name;
  }
  // Exit code and both outputs.
  std::pair<int, std::string> desync(const std::vector<std::string>& dumps) {
    std::vector<std::string> args = {COHORT_TEST_BIN "/cohort", "trace", "desync"};
    args.insert(args.end(), dumps.begin(), dumps.end());
    test::ChildProcess process(args);
    const int code = process.wait(Milliseconds(30'000)).value_or(-1000);
    process.wait_for_end_of_output(Milliseconds(10'000));
    return {code, process.out() + process.err()};
  }

  const fs::path folder_ = fs::temp_directory_path() / str("cohort-trace-", ::getpid());
};

TEST_F(TraceCommand, TakesAFolderAndEndsWithThreeForADesync) {
  auto dumps = three(1);
  for (int rank = 0; rank < 3; ++rank) {
    dumps[rank].call("all_reduce", rank == 1 ? 4 : 5, "", "failed");
    write(str("flight-rank", rank, ".json"), dumps[rank].json().dump());
  }
  write("notes.txt", "not a dump");
  const auto [code, said] = desync({folder_});
  EXPECT_EQ(code, 3);
  EXPECT_THAT(said, StartsWith("rank 1 called all_reduce(sum) of 4 f32 as its 4th collective"));
}

TEST_F(TraceCommand, EndsWithZeroWhereThereIsNone) {
  auto dumps = three(1);
  const std::string a = write("a", dumps[0].json().dump());
  const std::string b = write("b", dumps[1].json().dump());
  const std::string c = write("c", dumps[2].json().dump());
  const auto [code, said] = desync({a, b, c});
  EXPECT_EQ(code, 0);
  EXPECT_THAT(said, StartsWith("no desync: "));
}

TEST_F(TraceCommand, EndsWithOneAndNamesAFileThatIsNoDump) {
  const std::string good = write("good", three(1)[0].json().dump());
  for (const auto& [text, says] : std::map<std::string, std::string>{
           {"", "the file is empty"}, {"garbage", "no JSON"}, {"{\"format\":", "truncated"}}) {
    const std::string bad = write("bad", text);
    const auto [code, said] = desync({good, bad});
    EXPECT_EQ(code, 1);
    EXPECT_THAT(said, AllOf(HasSubstr(bad), HasSubstr(says)));
  }
  const auto [missing, about_missing] = desync({good, folder_ / "none"});
  EXPECT_EQ(missing, 1);
  EXPECT_THAT(about_missing, AllOf(HasSubstr("none"), HasSubstr("cannot be read")));
  const auto [twice, about_twice] = desync({good, good});
  EXPECT_EQ(twice, 1);
  EXPECT_THAT(about_twice, HasSubstr("rank 0 is in"));
  const auto [empty, about_empty] = desync({folder_});
  EXPECT_EQ(empty, 1);
  EXPECT_THAT(about_empty, HasSubstr("no flight-rank*.json in this folder"));
}

TEST_F(TraceCommand, EndsWithTwoWhenTheCommandLineMakesNoSense) {
  EXPECT_EQ(desync({}).first, 2);
  EXPECT_EQ(desync({"--nothing"}).first, 2);
}

}  // namespace
}  // namespace cohort::tools
