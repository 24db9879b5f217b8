// What `cohort trace desync` refuses, and how the command ends.

#include "tools/trace_dump.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "support/child_process.h"
#include "tools/made_dump.h"
#include "tools/trace_desync.h"

namespace cohort::tools {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

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
  std::map<int, TraceDump> dumps;
  for (int rank = 0; rank < 3; ++rank) {
    dumps[rank] = Dump(rank).call("all_reduce", rank, "\x1b[31mred\n", "failed").parsed();
  }
  EXPECT_THAT(explain(dumps).sentence, AllOf(Not(HasSubstr("\x1b")), HasSubstr("?[31mred?")));
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
