#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "comm/failure.h"
#include "comm/gloo/control.h"

namespace cohort::comm::gloo {

// What the words of a group's members carry, besides their text.

struct Leaving {
  std::uint64_t sequence;  // the last collective
  std::uint64_t sent;      // messages to the receiver of the word
  std::uint64_t received;  // messages from it
};

struct Here {
  Position position;
  std::uint64_t begun;  // the last collective of the group that was asked about
};

struct FailureHead {
  FailureKind kind;
  std::int32_t origin;
};

template <typename T>
std::string packed(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// False for a word that is no word of ours.
template <typename T>
bool unpack(const std::string& body, T& value) {
  if (body.size() < sizeof(value)) return false;
  std::memcpy(&value, body.data(), sizeof(value));
  return true;
}

inline bool is_pair(const Call& call) {
  return call.operation == Operation::send || call.operation == Operation::recv;
}

}  // namespace cohort::comm::gloo
