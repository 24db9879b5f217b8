#include "cohort/core/storage.h"

#include <utility>

#include "cohort/core/context.h"
#include "cohort/core/error.h"

namespace cohort {

Storage::Storage(std::size_t bytes, Device device) : bytes_(bytes), device_(device) {
  Context& context = Context::current();
  category_ = context.memory_category;
  allocator_ = context.runtime()->allocator(device);
  if (bytes_ > 0) block_ = allocator_->allocate(bytes_, context.stream(device), category_);
}

Storage::Storage(void* data, std::size_t bytes, Device device, std::function<void()> deleter)
    : bytes_(bytes),
      device_(device),
      category_(MemoryCategory::other),
      deleter_(std::move(deleter)) {
  block_.data = data;
}

Storage::~Storage() {
  if (deleter_) deleter_();
  if (allocator_ && block_.capacity > 0) {
    allocator_->free(block_, readers_.data(), readers_.size());
  }
}

void Storage::record_stream(const Stream& stream) {
  if (allocator_ && stream.id() != block_.stream) readers_.push_back(stream.record());
}

void Storage::borrow_memory(IntrusivePtr<Storage> lender, std::size_t offset) {
  check(block_.data == nullptr, "[storage] there is memory already");
  check(lender && lender->device() == device_ && offset <= lender->bytes() &&
            bytes_ <= lender->bytes() - offset,
        "[storage] the lender has too little memory, or another device's");
  lender_ = std::move(lender);
  block_.data = static_cast<std::byte*>(lender_->data()) + offset;
}

void Storage::release_memory() {
  if (lender_) {
    lender_.reset();
    block_ = {};
    return;
  }
  check(allocator_ != nullptr, "[storage] memory provided by the caller cannot be released");
  if (block_.capacity == 0) return;
  allocator_->free(std::exchange(block_, {}), readers_.data(), readers_.size());
  readers_.clear();
}

void Storage::restore_memory() {
  check(allocator_ != nullptr, "[storage] memory provided by the caller cannot be restored");
  if (block_.capacity > 0 || bytes_ == 0) return;
  block_ = allocator_->allocate(bytes_, Context::current().stream(device_), category_);
}

}  // namespace cohort
