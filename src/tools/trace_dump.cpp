#include "tools/trace_dump.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cohort/core/error.h"

namespace cohort::tools {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr int kVersion = 1;
// The largest recorder's file has some 400 MB.
constexpr std::uintmax_t kMaxBytes = std::uintmax_t{1} << 30;
constexpr int kMaxRanks = 1 << 20;
constexpr std::int64_t kMaxCount = std::numeric_limits<std::int64_t>::max();

// One object of the file, with the words for what is wrong in it.
class Fields {
 public:
  Fields(const Json& json, std::string place) : json_(json), place_(std::move(place)) {
    check<FileError>(json.is_object(), place_, " is no object");
  }

  const Json& at(const char* key) const {
    const auto found = json_.find(key);
    check<FileError>(found != json_.end(), place_, " has no '", key, "'");
    return *found;
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    check<FileError>(value.is_string(), place_, ": '", key, "' is no text");
    return value.get<std::string>();
  }
  // Null and absent are nothing.
  std::optional<std::string> optional_text(const char* key) const {
    const auto found = json_.find(key);
    if (found == json_.end() || found->is_null()) return std::nullopt;
    return text(key);
  }
  bool flag(const char* key) const {
    const Json& value = at(key);
    check<FileError>(value.is_boolean(), place_, ": '", key, "' is neither true nor false");
    return value.get<bool>();
  }
  std::int64_t integer(const char* key, std::int64_t low, std::int64_t high) const {
    return integer_of(at(key), key, low, high);
  }
  int rank(const char* key) const { return static_cast<int>(integer(key, 0, kMaxRanks - 1)); }
  double number(const char* key) const {
    const Json& value = at(key);
    if (value.is_null()) return 0;  // not a number, or not yet
    check<FileError>(value.is_number() && std::isfinite(value.get<double>()), place_, ": '", key,
                     "' is no number");
    return value.get<double>();
  }
  const Json& array(const char* key) const {
    const Json& value = at(key);
    check<FileError>(value.is_array(), place_, ": '", key, "' is no list");
    return value;
  }
  std::int64_t integer_of(const Json& value, const char* key, std::int64_t low,
                          std::int64_t high) const {
    // An unsigned number beyond an int64_t would turn negative on its way.
    const bool small = !value.is_number_unsigned() ||
                       value.get<std::uint64_t>() <= static_cast<std::uint64_t>(kMaxCount);
    check<FileError>(value.is_number_integer() && small && value.get<std::int64_t>() >= low &&
                         value.get<std::int64_t>() <= high,
                     place_, ": '", key, "' is no whole number from ", low, " to ", high);
    return value.get<std::int64_t>();
  }

 private:
  const Json& json_;
  const std::string place_;
};

TraceState state_of(const std::string& text, const std::string& place) {
  if (text == "enqueued") return TraceState::enqueued;
  if (text == "started") return TraceState::started;
  if (text == "finished") return TraceState::finished;
  check<FileError>(text == "failed", place, ": there is no state '", text, "'");
  return TraceState::failed;
}

TraceGroup group_of(const Json& json, const std::string& place, int rank) {
  const Fields fields(json, place);
  TraceGroup group{
      .name = fields.text("name"),
      .rank = fields.rank("rank"),
      .ranks = {},
      .collectives = static_cast<std::uint64_t>(fields.integer("collectives", 0, kMaxCount)),
      .left = fields.flag("left"),
      .failure = fields.optional_text("failure")};
  for (const Json& member : fields.array("ranks")) {
    group.ranks.push_back(static_cast<int>(fields.integer_of(member, "ranks", 0, kMaxRanks - 1)));
  }
  check<FileError>(
      std::set<int>(group.ranks.begin(), group.ranks.end()).size() == group.ranks.size(), place,
      ": 'ranks' names a rank twice");
  const auto self = static_cast<std::size_t>(group.rank);
  check<FileError>(self < group.ranks.size() && group.ranks[self] == rank, place, ": rank ",
                   group.rank, " of 'ranks' is not rank ", rank, ", whose file it is");
  return group;
}

TraceRecord record_of(const Json& json, const std::string& place, const TraceDump& dump) {
  const Fields fields(json, place);
  TraceRecord record{
      .group = fields.integer("group", 0, kMaxCount),
      .sequence = static_cast<std::uint64_t>(fields.integer("sequence", 1, kMaxCount)),
      .operation = fields.text("operation"),
      .reduce = fields.optional_text("reduce").value_or(""),
      .dtype = fields.text("dtype"),
      .elements = fields.integer("elements", 0, kMaxCount),
      .peer = -1,
      .scale = fields.number("scale"),
      .owner = fields.text("owner"),
      .state = state_of(fields.text("state"), place),
      .enqueued = fields.number("enqueued_ns"),
      .started = fields.number("started_ns"),
      .finished = fields.number("finished_ns"),
      .error = fields.optional_text("error")};
  const auto group = dump.groups.find(record.group);
  check<FileError>(group != dump.groups.end(), place, ": there is no group ", record.group);
  if (!fields.at("peer").is_null()) record.peer = fields.rank("peer");
  const bool pair = record.operation == "send" || record.operation == "recv";
  check<FileError>(
      record.peer < static_cast<int>(group->second.ranks.size()) && (!pair || record.peer >= 0),
      place, ": 'peer' is no rank of its group");
  return record;
}

TraceDump dump_of(const Json& json, const std::string& file) {
  const std::string place = str("[trace] ", file, ": it");
  const Fields fields(json, place);
  check<FileError>(json.contains("format") && json["format"] == "cohort-flight-record", "[trace] ",
                   file, ": this is no flight record");
  const std::int64_t version = fields.integer("version", 0, kMaxCount);
  check<FileError>(version == kVersion, "[trace] ", file, ": version ", version,
                   " of the format; this program reads version ", kVersion);
  TraceDump dump{.file = file,
                 .rank = fields.rank("rank"),
                 .reason = fields.text("reason"),
                 .exception = fields.optional_text("exception"),
                 .written = fields.number("written_ns"),
                 .groups = {},
                 .records = {}};
  for (const Json& group : fields.array("groups")) {
    const std::string where = str("[trace] ", file, ": group ", dump.groups.size());
    const std::int64_t id = Fields(group, where).integer("id", 0, kMaxCount);
    check<FileError>(dump.groups.emplace(id, group_of(group, where, dump.rank)).second, where,
                     ": id ", id, " is there twice");
  }
  for (const Json& record : fields.array("records")) {
    dump.records.push_back(
        record_of(record, str("[trace] ", file, ": record ", dump.records.size()), dump));
  }
  return dump;
}

std::string read_file(const fs::path& path) {
  std::error_code error;
  const std::uintmax_t bytes = fs::file_size(path, error);
  check<FileError>(!error, "[trace] ", path.string(), ": cannot be read: ", error.message());
  check<FileError>(bytes <= kMaxBytes, "[trace] ", path.string(), ": ", bytes,
                   " bytes are too many for a flight record");
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  check<FileError>(bytes == 0 || (file && text), "[trace] ", path.string(), ": cannot be read");
  return std::move(text).str();
}

std::vector<fs::path> files_in(const std::string& given) {
  if (!fs::is_directory(given)) return {given};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(given)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("flight-rank") && name.ends_with(".json")) files.push_back(entry.path());
  }
  check<FileError>(!files.empty(), "[trace] ", given, ": no flight-rank*.json in this folder");
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

TraceDump parse_dump(std::string_view text, const std::string& file) {
  check<FileError>(!text.empty(), "[trace] ", file, ": the file is empty");
  try {
    return dump_of(Json::parse(text), file);
  } catch (const Json::exception& error) {
    // The library's words: "[json.exception.parse_error.101] parse error at line 1, column 2: …".
    const std::string_view words = error.what();
    const std::size_t begin = words.find("] ");
    throw FileError(str("[trace] ", file, ": truncated, or no JSON: ",
                        begin == words.npos ? words : words.substr(begin + 2)));
  }
}

std::map<int, TraceDump> read_dumps(const std::vector<std::string>& paths) {
  std::map<int, TraceDump> dumps;
  for (const std::string& given : paths) {
    for (const fs::path& path : files_in(given)) {
      TraceDump dump = parse_dump(read_file(path), path.string());
      const auto [known, fresh] = dumps.try_emplace(dump.rank, std::move(dump));
      check<FileError>(fresh, "[trace] ", path.string(), ": rank ", known->first, " is in ",
                       known->second.file, " already; give one file per rank");
    }
  }
  check<FileError>(!dumps.empty(), "[trace] no dumps were given");
  return dumps;
}

}  // namespace cohort::tools
