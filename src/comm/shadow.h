#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "comm/transport.h"

namespace cohort::comm {

// A collective as announced to ranks in shadow(). The words are reduced with max over all ranks:
// those that announce give the same words, none negative; those in shadow() give zeros. All zero
// means that every rank is in shadow().
inline constexpr std::size_t kOwnerWords = 12;  // four bytes of the owner's first 47 each
using Announcement = std::array<std::int64_t, 8 + kOwnerWords>;

Announcement announcement_of(const Call& call);
// Nothing when all words are zero.
std::optional<Call> announced_call(const Announcement& announcement);

}  // namespace cohort::comm
