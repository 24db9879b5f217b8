#pragma once

#include <cstdint>

namespace cohort::comm::gloo {

// Gloo's name for what a message is: those of one pair and slot arrive in order.
inline constexpr std::uint64_t kHeaderSlot = 1;       // of a collective
inline constexpr std::uint64_t kDataSlot = 2;         // to the rank that sums, or to keep
inline constexpr std::uint64_t kResultSlot = 3;       // handed back or on
inline constexpr std::uint64_t kMessageSlot = 4;      // point to point: header, small messages
inline constexpr std::uint64_t kMessageDataSlot = 5;  // large ones

}  // namespace cohort::comm::gloo
