// Point to point. A message is a header with the bytes behind it, or with the bytes to follow once
// the receiver has seen that it fits.

#include <cstring>

#include "cohort/core/error.h"
#include "comm/gloo/collectives.h"
#include "comm/gloo/slots.h"

namespace cohort::comm::gloo {
namespace {

struct MessageHeader {
  std::int64_t elements;
  DType dtype;
  bool follows;  // the bytes come by themselves
  char owner[kOwnerBytes];
};

// All messages to one peer that have not been received yet; a longer one waits for its receiver.
constexpr std::int64_t kEagerBytes = 64 << 10;
constexpr std::size_t kMessageBytes = sizeof(MessageHeader) + static_cast<std::size_t>(kEagerBytes);

// The member's begin and end around one message.
class Turn {
 public:
  Turn(Member& member, const Call& call, std::uint64_t sequence) : member_(member) {
    member_.begin(call, sequence);
  }
  ~Turn() { member_.end(done_); }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;
  void finish() { done_ = true; }

 private:
  Member& member_;
  const NoSigpipe guard_;
  bool done_ = false;
};

}  // namespace

std::int64_t GlooTransport::eager_send_bytes() const {
  return kEagerBytes;
}

void GlooTransport::drop_oldest(int peer) {
  Messages& messages = messages_[static_cast<std::size_t>(peer)];
  Eager& oldest = messages.eager.front();
  member_->await_send(*oldest.buffer, peer);
  messages.eager_bytes -= static_cast<std::int64_t>(oldest.bytes.size());
  messages.eager.pop_front();
}

std::int64_t GlooTransport::send(const Call& call, const void* data) {
  Turn turn(*member_, call, sequence_);
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  const int peer = call.peer;
  MessageHeader header{};
  header.elements = call.elements;
  header.dtype = call.dtype;
  header.follows = bytes > kEagerBytes;
  call.owner.copy(header.owner, kOwnerBytes - 1);
  Eager message;
  message.bytes.resize(sizeof(header) + static_cast<std::size_t>(header.follows ? 0 : bytes));
  std::memcpy(message.bytes.data(), &header, sizeof(header));
  if (!header.follows && bytes > 0) {
    std::memcpy(message.bytes.data() + sizeof(header), data, static_cast<std::size_t>(bytes));
  }
  const auto length = static_cast<std::int64_t>(message.bytes.size());
  Messages& messages = messages_[static_cast<std::size_t>(peer)];
  while (!messages.eager.empty() &&
         messages.eager_bytes + length > static_cast<std::int64_t>(kMessageBytes)) {
    drop_oldest(peer);
  }
  message.buffer = member_->mesh().buffer(message.bytes.data(), message.bytes.size());
  member_->post(peer, [&] { message.buffer->send(peer, kMessageSlot); });
  messages.eager_bytes += length;
  messages.eager.push_back(std::move(message));
  if (header.follows) {
    Posted posted = post_send(peer, kMessageDataSlot, data, bytes);
    await_sent(posted);
  }
  turn.finish();
  return bytes;
}

std::int64_t GlooTransport::recv(const Call& call, void* data) {
  Turn turn(*member_, call, sequence_);
  const int peer = call.peer;
  message_.resize(kMessageBytes);
  Posted arriving = post_recv(peer, kMessageSlot, message_.data(), kMessageBytes);
  await_received(arriving);
  MessageHeader header{};
  std::memcpy(&header, message_.data(), sizeof(header));
  const std::string owner(header.owner, strnlen(header.owner, kOwnerBytes));
  if (header.elements != call.elements || header.dtype != call.dtype ||
      owner != call.owner.substr(0, kOwnerBytes - 1)) {
    const Call sent{.operation = Operation::send,
                    .dtype = header.dtype,
                    .elements = header.elements,
                    .peer = rank(),
                    .owner = owner};
    member_->fail(FailureKind::mismatch, peer,
                  str("rank ", peer, " called ", describe(sent), "; rank ", rank(), " called ",
                      describe(call)));
  }
  const std::int64_t bytes = call.elements * static_cast<std::int64_t>(item_size(call.dtype));
  if (header.follows) {
    Posted body = post_recv(peer, kMessageDataSlot, data, bytes);
    await_received(body);
  } else if (bytes > 0) {
    std::memcpy(data, message_.data() + sizeof(header), static_cast<std::size_t>(bytes));
  }
  turn.finish();
  return bytes;
}

}  // namespace cohort::comm::gloo
