// The flight recorder's files. docs/hangs.md describes the format; `cohort trace` reads it.

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>

#include "cohort/core/error.h"
#include "cohort/core/logging.h"
#include "comm/flight_recorder.h"

namespace cohort::comm {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormatVersion = 1;

// What a reader can compare with other ranks': nanoseconds since 1970.
class WallClock {
 public:
  // Null for what has not happened.
  Json at(std::int64_t steady) const {
    return steady == 0 ? Json(nullptr) : Json(steady + offset_);
  }
  Json now() const { return at(steady_); }

 private:
  static std::int64_t count(auto time) {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch()).count();
  }
  const std::int64_t steady_ = count(Clock::now());
  const std::int64_t offset_ = count(std::chrono::system_clock::now()) - steady_;
};

std::string owner_of(const FlightEntry& entry) {
  return {entry.owner, strnlen(entry.owner, sizeof(entry.owner))};
}

Call call_of(const FlightEntry& entry) {
  return {.operation = entry.operation,
          .reduce = entry.reduce,
          .dtype = entry.dtype,
          .elements = entry.elements,
          .peer = entry.peer,
          .scale = entry.scale,
          .owner = owner_of(entry)};
}

bool reduces(Operation operation) {
  return operation == Operation::all_reduce || operation == Operation::reduce_scatter;
}

Json json_of(const FlightRecord& record, const WallClock& clock, const std::string* error) {
  const FlightEntry& entry = record.entry;
  Json json = {{"group", entry.group},
               {"sequence", entry.sequence},
               {"operation", name(entry.operation)},
               {"reduce", nullptr},
               {"dtype", name(entry.dtype)},
               {"elements", entry.elements},
               {"peer", nullptr},
               {"scale", entry.scale},
               {"owner", owner_of(entry)},
               {"state", name(record.state)},
               {"enqueued_ns", clock.at(entry.enqueued)},
               {"started_ns", clock.at(entry.started)},
               {"finished_ns", clock.at(entry.finished)}};
  if (reduces(entry.operation)) json["reduce"] = name(entry.reduce);
  if (entry.peer >= 0) json["peer"] = entry.peer;
  if (record.state == FlightState::failed) json["error"] = error ? Json(*error) : Json(nullptr);
  return json;
}

// Text of users, in which any bytes may be.
std::string dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string host_name() {
  std::array<char, 256> text{};
  ::gethostname(text.data(), text.size() - 1);
  return text.data();
}

void write_all(int fd, std::string_view text, const std::string& path) {
  while (!text.empty()) {
    const ssize_t wrote = ::write(fd, text.data(), text.size());
    if (wrote < 0 && errno == EINTR) continue;
    check<FileError>(wrote > 0, "[flight_recorder] cannot write ", path, ": ",
                     std::strerror(errno));
    text.remove_prefix(static_cast<std::size_t>(wrote));
  }
}

std::string seconds_since(std::int64_t then, Clock::time_point now) {
  const double elapsed = std::chrono::duration<double>(now.time_since_epoch()).count() -
                         static_cast<double>(then) * 1e-9;
  std::ostringstream out;
  out.precision(3);
  out << elapsed << " s";
  return std::move(out).str();
}

std::string where(const FlightRecord* last, Clock::time_point now) {
  if (last == nullptr) return "no collective yet";
  const FlightEntry& entry = last->entry;
  const std::string what = str(describe(call_of(entry)), " (sequence ", entry.sequence, ")");
  switch (last->state) {
    case FlightState::enqueued:
      return str(what, " was called ", seconds_since(entry.enqueued, now), " ago, and waits");
    case FlightState::started:
      return str("in ", what, " for ", seconds_since(entry.started, now));
    case FlightState::finished:
      return str("in no collective; ", what, " finished ", seconds_since(entry.finished, now),
                 " ago");
    case FlightState::failed:
      break;
  }
  return str(what, " failed ", seconds_since(entry.finished, now), " ago");
}

}  // namespace

// A copy, so that texts are made without the lock.
struct FlightRecorder::Snapshot {
  struct Group {
    std::shared_ptr<FlightGroup> constant;
    bool left;
    std::string failure;
  };
  std::map<std::uint32_t, Group> groups;
  int rank;
  std::string exception;
  std::map<std::uint64_t, std::string> errors;
  std::vector<FlightRecord> records;
};

FlightRecorder::Snapshot FlightRecorder::snapshot() const {
  Snapshot taken;
  {
    const std::lock_guard lock(mutex_);
    taken.rank = rank_;
    taken.exception = exception_;
    taken.errors = {errors_.begin(), errors_.end()};
    for (const auto& group : groups_) {
      taken.groups.emplace(group->id, Snapshot::Group{group, group->left, group->failure});
    }
  }
  if (ring_) taken.records = ring_->read();
  std::erase_if(taken.records, [&](const FlightRecord& record) {
    return !taken.groups.contains(record.entry.group);
  });
  return taken;
}

std::string FlightRecorder::to_json(std::string_view reason) const {
  const Snapshot taken = snapshot();
  const WallClock clock;
  Json groups = Json::array();
  for (const auto& [id, group] : taken.groups) {
    groups.push_back({{"id", id},
                      {"name", group.constant->name},
                      {"backend", group.constant->backend},
                      {"rank", group.constant->rank},
                      {"ranks", group.constant->world_ranks},
                      {"collectives", group.constant->collectives.load(std::memory_order_relaxed)},
                      {"left", group.left},
                      {"failure", group.failure.empty() ? Json(nullptr) : Json(group.failure)}});
  }
  const Json head = {{"format", "cohort-flight-record"},
                     {"version", kFormatVersion},
                     {"rank", std::max(taken.rank, 0)},
                     {"pid", ::getpid()},
                     {"host", host_name()},
                     {"reason", reason},
                     {"exception", taken.exception.empty() ? Json(nullptr) : Json(taken.exception)},
                     {"written_ns", clock.now()},
                     {"size", options_.size},
                     {"recorded", ring_ ? ring_->recorded() : 0}};
  // A line per group and per collective, for those who read it without a tool.
  std::string text = "{";
  for (const auto& [key, value] : head.items()) {
    text += str(text.size() == 1 ? "\n" : ",\n", Json(key).dump(), ": ", dump(value));
  }
  const auto append_list = [&](const char* key, const auto& items, auto&& item_text) {
    text += str(",\n\"", key, "\": [");
    const char* separator = "\n";
    for (const auto& item : items) {
      text += separator + item_text(item);
      separator = ",\n";
    }
    text += "\n]";
  };
  append_list("groups", groups, dump);
  append_list("records", taken.records, [&](const FlightRecord& record) {
    const auto error = taken.errors.find(record.ticket);
    return dump(json_of(record, clock, error == taken.errors.end() ? nullptr : &error->second));
  });
  return text + "\n}\n";
}

void FlightRecorder::write(const std::string& path, std::string_view reason) const {
  const std::string text = to_json(reason);
  // A reader, and a rank that is killed while it writes, must never leave half a file.
  const std::string part = str(path, ".", ::getpid(), ".part");
  const std::lock_guard lock(file_mutex_);
  const int fd = ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  check<FileError>(fd >= 0, "[flight_recorder] cannot write ", part, ": ", std::strerror(errno));
  try {
    write_all(fd, text, part);
    ::close(fd);
    check<FileError>(::rename(part.c_str(), path.c_str()) == 0, "[flight_recorder] cannot write ",
                     path, ": ", std::strerror(errno));
  } catch (...) {
    ::unlink(part.c_str());
    throw;
  }
}

bool FlightRecorder::write_trace(std::string_view reason) const noexcept {
  try {
    int rank = -1;
    {
      const std::lock_guard lock(mutex_);
      rank = rank_;
    }
    if (options_.trace_dir.empty() || rank < 0 || !ring_) return false;
    std::filesystem::create_directories(options_.trace_dir);
    const std::string path = str(options_.trace_dir, "/flight-rank", rank, ".json");
    write(path, reason);
    logging::info(str("[flight_recorder] wrote ", path));
    return true;
  } catch (const std::exception& error) {
    logging::warn(str("[flight_recorder] nothing was written: ", error.what()));
    return false;
  }
}

std::string FlightRecorder::summary() const {
  const Snapshot taken = snapshot();
  const Clock::time_point now = Clock::now();
  if (taken.groups.empty()) return "no group was formed yet\n";
  std::string text;
  for (const auto& [id, group] : taken.groups) {
    // Where the rank is: the first collective that has not ended, or else the last one.
    const FlightRecord* last = nullptr;
    for (const FlightRecord& record : taken.records) {
      if (record.entry.group != id) continue;
      last = &record;
      if (record.state < FlightState::finished) break;
    }
    text +=
        str("[rank ", taken.rank, "] group '", group.constant->name, "' (", group.constant->backend,
            ", rank ", group.constant->rank, " of ", group.constant->world_ranks.size(),
            "): ", where(last, now), group.left ? "; has left the group" : "", "\n");
  }
  return text;
}

void dump_flight_record(const std::string& path) {
  FlightRecorder::of(*Context::current().runtime())->write(path, "request");
}

}  // namespace cohort::comm
