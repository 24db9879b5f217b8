// Point to point: each ordered pair of ranks has a ring of bytes with one writer and one reader.

#include <algorithm>
#include <cstring>

#include "cohort/core/error.h"
#include "comm/shm/shm_transport.h"

namespace cohort::comm::shm {
namespace {

// Goes before each message's bytes.
struct MessageHeader {
  std::int64_t elements;
  DType dtype;
  char owner[kOwnerBytes];
};

// One end of a ring.
class Ring {
 public:
  Ring(Member& member, int from, int to, int peer)
      : member_(member),
        channel_(member.layout().channel(member.base(), from, to)),
        bytes_(member.layout().ring(member.base(), from, to)),
        capacity_(static_cast<std::uint32_t>(member.layout().channel_bytes())),
        peer_(peer) {}

  void write(const void* data, std::int64_t count) {
    const auto* from = static_cast<const std::byte*>(data);
    std::uint32_t written = channel_.written.load();
    while (count > 0) {
      const std::uint32_t read = member_.await_word(
          channel_.read, peer_, [&](std::uint32_t value) { return written - value < capacity_; });
      const std::uint32_t n = chunk(written, capacity_ - (written - read), count);
      std::memcpy(bytes_ + written % capacity_, from, n);
      written += n;
      from += n;
      count -= n;
      channel_.written.publish(written);
    }
  }

  void read(void* data, std::int64_t count) {
    auto* to = static_cast<std::byte*>(data);
    std::uint32_t read = channel_.read.load();
    while (count > 0) {
      const std::uint32_t written = member_.await_word(
          channel_.written, peer_, [&](std::uint32_t value) { return value != read; });
      const std::uint32_t n = chunk(read, written - read, count);
      std::memcpy(to, bytes_ + read % capacity_, n);
      read += n;
      to += n;
      count -= n;
      channel_.read.publish(read);
    }
  }

 private:
  // Bytes to copy at once: up to the ring's end. At most a quarter of it, so that the two ends work
  // at the same time.
  std::uint32_t chunk(std::uint32_t position, std::uint32_t available, std::int64_t wanted) const {
    const std::uint32_t to_end = capacity_ - position % capacity_;
    const std::uint32_t limit = std::min({available, to_end, capacity_ / 4});
    return static_cast<std::uint32_t>(std::min<std::int64_t>(limit, wanted));
  }

  Member& member_;
  Channel& channel_;
  std::byte* const bytes_;
  const std::uint32_t capacity_;  // a power of two, so that positions wrap with it
  const int peer_;
};

// The member's begin and end around one message.
class Turn {
 public:
  Turn(Member& member, const Call& call, std::uint64_t sequence) : member_(member) {
    member_.begin(call, sequence);
  }
  ~Turn() { member_.end(); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  Member& member_;
};

}  // namespace

std::int64_t ShmTransport::eager_send_bytes() const {
  return static_cast<std::int64_t>(member_->layout().channel_bytes() - sizeof(MessageHeader));
}

std::int64_t ShmTransport::send(const Call& call, const void* data) {
  const Turn turn(*member_, call, sequence_);
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  MessageHeader header{};
  header.elements = call.elements;
  header.dtype = call.dtype;
  call.owner.copy(header.owner, kOwnerBytes - 1);
  Ring ring(*member_, rank(), call.peer, call.peer);
  ring.write(&header, sizeof(header));
  ring.write(data, bytes);
  return bytes;
}

std::int64_t ShmTransport::recv(const Call& call, void* data) {
  const Turn turn(*member_, call, sequence_);
  MessageHeader header{};
  Ring ring(*member_, call.peer, rank(), call.peer);
  ring.read(&header, sizeof(header));
  const std::string owner(header.owner, strnlen(header.owner, kOwnerBytes));
  if (header.elements != call.elements || header.dtype != call.dtype ||
      owner != call.owner.substr(0, kOwnerBytes - 1)) {
    Call sent{.operation = Operation::send,
              .dtype = header.dtype,
              .elements = header.elements,
              .peer = rank(),
              .owner = owner};
    member_->fail(FailureKind::mismatch, call.peer,
                  str("rank ", call.peer, " called ", describe(sent), "; rank ", rank(), " called ",
                      describe(call)));
  }
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  ring.read(data, bytes);
  return bytes;
}

}  // namespace cohort::comm::shm
