// What this rank will write for a collective: the sums that the collectives come to.

#include "comm/gloo/collectives.h"
#include "comm/gloo/hierarchical.h"
#include "comm/reduce.h"

namespace cohort::comm::gloo {

std::optional<std::int64_t> GlooTransport::expected_bytes(const Call& call, bool, bool) const {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const std::int64_t bytes = call.elements * item;
  switch (call.operation) {
    case Operation::barrier:
      return 0;
    case Operation::all_reduce: {
      if (bytes <= kInlineBytes) return bytes * size();
      // The others' shares go out, the own one to all.
      const Share share = share_of(call.elements, item, rank(), size());
      return bytes + (share.end - share.begin) * item * (size() - 1);
    }
    case Operation::reduce_scatter:
    case Operation::all_gather:
      return bytes;
    default:
      return std::nullopt;
  }
}

std::int64_t HierarchicalTransport::exchanged_bytes(DType dtype, std::int64_t elements) const {
  const auto hosts = static_cast<int>(tree_.hosts().size());
  const auto item = static_cast<std::int64_t>(item_size(dtype));
  const auto wide = static_cast<std::int64_t>(item_size(partial_dtype(dtype)));
  const Share share = share_of(elements, item, host_, hosts);
  const std::int64_t own = share.end - share.begin;
  return (elements - own) * wide + own * item * hosts;
}

std::optional<std::int64_t> HierarchicalTransport::expected_bytes(const Call& call, bool symmetric,
                                                                  bool in_place) const {
  const auto item = static_cast<std::int64_t>(item_size(call.dtype));
  const auto wide = static_cast<std::int64_t>(item_size(partial_dtype(call.dtype)));
  const auto hosts = static_cast<std::int64_t>(tree_.hosts().size());
  const std::int64_t part = call.elements / size();
  switch (call.operation) {
    case Operation::all_reduce: {
      if (call.elements * item <= kInlineBytes) break;
      if (place_ >= slices_) return 0;
      const std::int64_t own = slice_counts(call)[static_cast<std::size_t>(place_)];
      // On the host: the result to the others' tensors, or the own slice through staging.
      const std::int64_t locally = !local_ ? 0 : own * item * (symmetric ? local_size() - 1 : 1);
      return locally + exchanged_bytes(call.dtype, own);
    }
    case Operation::reduce_scatter:
      if (!regular_) break;
      return (hosts - 1) * part * wide + part * item + hosts * part * wide;
    case Operation::all_gather:
      if (!regular_ || part * item <= kInlineBytes) break;
      return part * item * (local_size() + hosts);
    default:
      break;
  }
  return GlooTransport::expected_bytes(call, symmetric, in_place);
}

}  // namespace cohort::comm::gloo
