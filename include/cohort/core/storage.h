#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "cohort/core/device.h"
#include "cohort/core/intrusive_ptr.h"
#include "cohort/core/memory.h"
#include "cohort/core/stream.h"

namespace cohort {

// The bytes behind one or more tensors, and the count of writes to them. Tensors refer to the
// storage object, never to its address: the memory can be released and come back under them.
//
// Owned by reference count. The version and the memory belong to one host thread at a time.
class Storage : public RefCounted {
 public:
  // Fresh memory of the current context's allocator, stream and category; uninitialised.
  Storage(std::size_t bytes, Device device);
  // Memory that the caller provides; `deleter` runs when the storage goes.
  Storage(void* data, std::size_t bytes, Device device, std::function<void()> deleter);
  ~Storage();

  // Null on the meta device, when the size is zero, and while released.
  void* data() const { return device_.type == DeviceType::meta ? nullptr : block_.data; }
  std::size_t bytes() const { return bytes_; }
  Device device() const { return device_; }

  // Counts writes in place; autograd compares it to tell that a saved tensor has changed.
  std::uint32_t version() const { return version_; }
  void bump_version() { ++version_; }

  // The promise of a flat buffer's owner: every tensor in it begins on a multiple of
  // kMemoryAlignment bytes, no two tensors share one, and the bytes between them are padding, zero,
  // which an element-wise update may run over.
  void set_padded_slots() { padded_slots_ = true; }
  bool padded_slots() const { return padded_slots_; }

  // Says that work on `stream` enqueued so far uses the memory, so that it is not handed out again
  // before that work has run. Not needed for the stream it was allocated on.
  void record_stream(const Stream& stream);

  // For a storage without memory (provided as null): lies in the memory of `lender`, `offset` bytes
  // from its start, and keeps it alive, until release_memory().
  void borrow_memory(IntrusivePtr<Storage> lender, std::size_t offset);
  // Gives the memory back while the tensors stay; data() is null until restore() or borrow.
  void release_memory();
  // Allocates the memory again, uninitialised, under the same category.
  void restore_memory();
  bool has_memory() const { return bytes_ == 0 || device_.type == DeviceType::meta || block_.data; }

 private:
  std::shared_ptr<Allocator> allocator_;  // null for provided memory
  Allocator::Block block_;
  std::size_t bytes_;
  Device device_;
  MemoryCategory category_;
  std::uint32_t version_ = 0;
  bool padded_slots_ = false;
  std::function<void()> deleter_;
  IntrusivePtr<Storage> lender_;
  std::vector<Event> readers_;
};

}  // namespace cohort
