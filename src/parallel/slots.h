#pragma once

#include <cstdint>
#include <deque>
#include <functional>

#include "cohort/core/event.h"
#include "cohort/core/tensor.h"

namespace cohort::parallel {

// Pieces of memory of one size that units take turns in. A piece that was given back may still be
// read until an event; who takes it next has to wait for that. What is taken, and what is made,
// depends on the order of calls alone, never on time: all ranks do the same.
class Slots {
 public:
  struct Slot {
    Tensor memory;  // bytes
    Event last_use;
    const void* tenant = nullptr;  // who has filled it
    bool own = false;              // of take_own()
  };

  // `make(bytes)` allocates a piece, or throws OutOfMemory on all ranks. A piece is used again when
  // there are `pieces` of them, and more than `spare` are free (its last user has that many turns
  // to finish), or when none can be made.
  Slots(std::int64_t bytes, int pieces, int spare, std::function<Tensor(std::int64_t)> make);

  std::int64_t bytes() const { return bytes_; }
  std::int64_t spare() const { return static_cast<std::int64_t>(spare_); }
  // The piece that `tenant` gave back last, if nobody has taken it since; then slot.tenant is it.
  // Another one otherwise, with the tenant null. OutOfMemory, and no change, when no piece is free
  // and none can be made.
  Slot take(const void* tenant = nullptr);
  // A piece of a size of its own, for who keeps it for long; it goes when it is given back.
  Slot take_own(std::int64_t bytes) const { return {make_(bytes), {}, nullptr, true}; }
  void give_back(Slot slot);
  // What free pieces hold is out of date.
  void forget();
  // Frees the pieces that nobody has.
  void trim();
  // The greatest number of pieces that were there at once.
  int most() const { return most_; }

 private:
  std::int64_t bytes_;
  int pieces_;
  std::size_t spare_;
  std::function<Tensor(std::int64_t)> make_;
  std::deque<Slot> free_;  // oldest first
  int count_ = 0;
  int most_ = 0;
};

// `elements` of `dtype`, one row, in `memory` from `byte_offset` on.
Tensor typed_row(const Tensor& memory, std::int64_t byte_offset, DType dtype,
                 std::int64_t elements);

}  // namespace cohort::parallel
