#pragma once

// Flight records made by hand, for the tests of what reads them.

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cohort/core/error.h"
#include "tools/trace_dump.h"

namespace cohort::tools {

using Json = nlohmann::json;

inline constexpr std::int64_t kStart = 1'700'000'000'000'000'000;

inline std::int64_t at_second(double second) {
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

// Three ranks with one history of training steps.
inline std::vector<Dump> three(int steps) {
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

}  // namespace cohort::tools
