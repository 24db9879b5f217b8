// What this rank will write for a collective: the sums that the routes of direct.cpp and staged.cpp
// come to.

#include "comm/shm/shm_transport.h"

namespace cohort::comm::shm {

std::optional<std::int64_t> ShmTransport::expected_bytes(const Call& call, bool symmetric,
                                                         bool in_place) const {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const std::int64_t bytes = call.elements * item;
  switch (call.operation) {
    case Operation::barrier:
      return 0;
    case Operation::all_reduce: {
      if (bytes <= kSmallBytes) return 2 * bytes;
      const auto own_share = [&](std::int64_t elements) {
        const Share share = share_of(elements, item, rank(), size());
        return (share.end - share.begin) * item;
      };
      if (symmetric) return own_share(call.elements) * size();
      // Into staging, the own share of the sums, and out.
      std::int64_t moved = 2 * bytes;
      const auto piece = static_cast<std::int64_t>(member_->layout().slot_bytes());
      for (std::int64_t at = 0; at < bytes; at += piece) {
        moved += own_share(std::min(piece, bytes - at) / item);
      }
      return moved;
    }
    case Operation::reduce_scatter:
      return (symmetric ? 0 : bytes) + bytes / size();
    case Operation::all_gather:
      // To each rank; or into staging and out again, where the own part may lie in place.
      return symmetric ? bytes - (in_place ? bytes / size() : 0)
                       : bytes + (in_place ? 0 : bytes / size());
    default:
      return std::nullopt;
  }
}

}  // namespace cohort::comm::shm
