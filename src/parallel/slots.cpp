#include "parallel/slots.h"

#include <algorithm>
#include <utility>

#include "cohort/core/error.h"

namespace cohort::parallel {

Slots::Slots(std::int64_t bytes, int pieces, int spare, std::function<Tensor(std::int64_t)> make)
    : bytes_(bytes),
      pieces_(pieces),
      spare_(static_cast<std::size_t>(spare)),
      make_(std::move(make)) {}

Slots::Slot Slots::take(const void* tenant) {
  const auto own = std::find_if(free_.begin(), free_.end(), [&](const Slot& slot) {
    return tenant != nullptr && slot.tenant == tenant;
  });
  if (own != free_.end() || (free_.size() > spare_ && count_ >= pieces_)) {
    const auto chosen = own != free_.end() ? own : free_.begin();
    Slot slot = std::move(*chosen);
    free_.erase(chosen);
    if (slot.tenant != tenant) slot.tenant = nullptr;
    return slot;
  }
  Slot slot;
  try {
    slot.memory = make_(bytes_);
  } catch (const OutOfMemory&) {
    if (free_.empty()) throw;
    // Less time for its last user, but room.
    slot = std::move(free_.front());
    free_.pop_front();
    slot.tenant = nullptr;
    return slot;
  }
  most_ = std::max(most_, ++count_);
  return slot;
}

void Slots::forget() {
  for (Slot& slot : free_) slot.tenant = nullptr;
}

void Slots::give_back(Slot slot) {
  if (slot.own) return;
  free_.push_back(std::move(slot));
}

void Slots::trim() {
  count_ -= static_cast<int>(free_.size());
  free_.clear();
}

Tensor typed_row(const Tensor& memory, std::int64_t byte_offset, DType dtype,
                 std::int64_t elements) {
  const std::int64_t at =
      memory.storage_offset() * static_cast<std::int64_t>(item_size(memory.dtype())) + byte_offset;
  return Tensor(make_intrusive<TensorImpl>(IntrusivePtr<Storage>(&memory.storage()), dtype,
                                           Shape{elements}, Dims{1},
                                           at / static_cast<std::int64_t>(item_size(dtype))));
}

}  // namespace cohort::parallel
