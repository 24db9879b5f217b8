#include "comm/store_session.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "comm/store_number.h"

namespace cohort::comm {
namespace {

// With more than this on its way to a client, its requests are left unread until it has taken some.
constexpr std::size_t kMaxBacklog = std::size_t{256} << 20;
// The last wills of one client, together.
constexpr std::size_t kMaxWillBytes = kMaxStoreValue;
// Messages gathered into one write; each is up to two buffers, well under IOV_MAX (1024).
constexpr std::size_t kMaxGather = 64;

}  // namespace

StoreSession::StoreSession(StoreSessionHost& host, const HandshakeKeys& keys,
                           asio::ip::tcp::socket socket)
    : host_(host), socket_(std::move(socket)), timer_(socket_.get_executor()), handshake_(keys) {}

void StoreSession::start() {
  expire_after(host_.options().handshake_timeout);
  read();
}

void StoreSession::close() {
  if (std::exchange(closed_, true)) return;
  timer_.cancel();
  asio::error_code ignored;
  socket_.close(ignored);
  for (auto& [call, waiter] : waiting_) host_.table().unpark(*waiter);
  waiting_.clear();
  // A full table loses a will rather than the server.
  for (auto& [key, value] : wills_) host_.table().set(key, std::move(value));
  wills_.clear();
  host_.leave(*this);
}

void StoreSession::expire_after(Milliseconds timeout) {
  expired_armed_ = true;
  timer_.expires_after(timeout);
  timer_.async_wait([self = shared_from_this()](const asio::error_code& error) {
    if (!error && self->expired_armed_) self->close();
  });
}

void StoreSession::read() {
  if (closed_ || reading_ || closing_after_write_ || backlog_ > kMaxBacklog) return;
  reading_ = true;
  socket_.async_wait(asio::ip::tcp::socket::wait_read,
                     [self = shared_from_this()](const asio::error_code& error) {
                       self->reading_ = false;
                       if (self->closed_) return;
                       if (error) return self->close();
                       self->on_readable();
                     });
}

void StoreSession::on_readable() {
  const asio::mutable_buffer buffer = host_.read_buffer();
  asio::error_code error;
  const std::size_t got = socket_.read_some(buffer, error);
  if (error == asio::error::would_block || error == asio::error::interrupted) return read();
  if (error) return close();
  const std::string_view bytes(static_cast<const char*>(buffer.data()), got);
  try {
    authenticated_ ? feed_frames(bytes) : feed_handshake(bytes);
  } catch (const std::exception&) {
    close();  // nonsense, or no memory for it: only this client suffers
  }
  read();
}

void StoreSession::feed_handshake(std::string_view bytes) {
  while (!bytes.empty() && !authenticated_) {
    const std::string_view part = bytes.substr(0, handshake_->expects() - hello_.size());
    hello_.append(part);
    bytes.remove_prefix(part.size());
    // A stranger that does not even know the magic gets no answer, and no time.
    if (!handshake_->plausible(hello_)) return close();
    if (hello_.size() < handshake_->expects()) return;
    auto step = handshake_->feed(hello_);
    hello_.clear();
    if (step.next == ServerHandshake::Next::done && !host_.admit(*this)) {
      step = {ServerHandshake::Next::rejected, std::string(1, static_cast<char>(Verdict::full))};
    }
    if (step.next == ServerHandshake::Next::rejected) return close_after_reply(step.reply);
    enqueue({std::move(step.reply), nullptr});
    if (step.next == ServerHandshake::Next::done) {
      authenticated_ = true;
      handshake_.reset();
      expired_armed_ = false;
      timer_.cancel();
    }
  }
  if (!bytes.empty()) feed_frames(bytes);
}

void StoreSession::close_after_reply(const std::string& reply) {
  if (reply.empty()) return close();
  closing_after_write_ = true;  // the handshake's timer still runs
  enqueue({reply, nullptr});
}

void StoreSession::feed_frames(std::string_view bytes) {
  input_.append(bytes.data(), bytes.size());
  while (!closed_) {
    const auto frame = input_.next();
    if (!frame) break;
    handle(*frame);
  }
  input_.compact();
  watch_progress();
}

// A client that stops in the middle of a frame is dropped; between frames it may rest for ever.
void StoreSession::watch_progress() {
  if (closed_) return;
  if (input_.partial()) {
    expire_after(host_.options().frame_timeout);
  } else if (std::exchange(expired_armed_, false)) {
    timer_.cancel();
  }
}

void StoreSession::handle(std::string_view frame) {
  FrameReader request(frame);
  const auto op = static_cast<StoreOp>(request.u8());
  const std::uint64_t call = request.u64();
  switch (op) {
    case StoreOp::set:
      return handle_set(call, request);
    case StoreOp::get: {
      std::vector<std::string> keys{std::string(request.key())};
      request.end();
      return handle_wait(call, std::move(keys), true);
    }
    case StoreOp::try_get: {
      const std::string key(request.key());
      request.end();
      return reply_value(call, host_.table().find(key), true);
    }
    case StoreOp::add:
      return handle_add(call, request);
    case StoreOp::compare_and_set:
      return handle_compare_and_set(call, request);
    case StoreOp::erase: {
      const std::string key(request.key());
      request.end();
      return reply(StoreStatus::ok, call, std::string(1, host_.table().erase(key) ? 1 : 0));
    }
    case StoreOp::wait: {
      const std::uint32_t count = request.u32();
      if (count == 0 || count > kMaxStoreWaitKeys) throw ProtocolError("a bad number of keys");
      std::vector<std::string> keys;
      for (std::uint32_t i = 0; i < count; ++i) keys.emplace_back(request.key());
      request.end();
      return handle_wait(call, std::move(keys), false);
    }
    case StoreOp::set_on_disconnect:
      return handle_will(call, request);
    case StoreOp::goodbye:
      request.end();
      wills_.clear();
      will_bytes_ = 0;
      return reply_ok(call);
    case StoreOp::cancel: {
      const std::uint64_t cancelled = request.u64();
      request.end();
      return handle_cancel(cancelled);
    }
  }
  throw ProtocolError("an unknown operation");
}

void StoreSession::handle_set(std::uint64_t call, FrameReader& request) {
  const std::string key(request.key());
  std::string value(request.value());
  request.end();
  if (!host_.table().set(key, std::move(value))) return reply_full(call);
  reply_ok(call);
}

void StoreSession::handle_add(std::uint64_t call, FrameReader& request) {
  const std::string key(request.key());
  const auto delta = static_cast<std::int64_t>(request.u64());
  request.end();
  const StoreValue value = host_.table().find(key);
  const auto sum = add_to_decimal(value ? std::string_view(*value) : "0", delta);
  if (!sum) {
    return reply(StoreStatus::invalid_argument, call,
                 "the value of '" + key + "' is no number that " + std::to_string(delta) +
                     " can be added to");
  }
  if (!host_.table().set(key, std::to_string(*sum))) return reply_full(call);
  std::string payload;
  for (int i = 0; i < 8; ++i) {
    payload.push_back(static_cast<char>(static_cast<std::uint64_t>(*sum) >> (8 * i)));
  }
  reply(StoreStatus::ok, call, payload);
}

void StoreSession::handle_compare_and_set(std::uint64_t call, FrameReader& request) {
  const std::string key(request.key());
  const bool expects = request.u8() != 0;
  const std::string_view expected = request.value();
  std::string desired(request.value());
  request.end();
  const StoreValue value = host_.table().find(key);
  const bool equal = value ? expects && *value == expected : !expects;
  if (equal && !host_.table().set(key, std::move(desired))) return reply_full(call);
  reply(StoreStatus::ok, call, std::string(1, equal ? 1 : 0));
}

void StoreSession::handle_wait(std::uint64_t call, std::vector<std::string> keys,
                               bool wants_value) {
  if (waiting_.size() >= host_.options().max_parked_calls) {
    return reply(StoreStatus::refused, call, "too many waiting calls on one connection");
  }
  if (waiting_.contains(call)) throw ProtocolError("a call number is used twice");
  // The table drops the waiter before this session can go, so a plain pointer does.
  const auto waiter = std::make_shared<StoreTable::Waiter>(
      std::move(keys), [this, call, wants_value](const StoreValue& value) {
        waiting_.erase(call);
        wants_value ? reply_value(call, value, false) : reply_ok(call);
      });
  waiting_.emplace(call, waiter);
  host_.table().wait(waiter);
}

void StoreSession::handle_will(std::uint64_t call, FrameReader& request) {
  const std::string key(request.key());
  const std::string_view value = request.value();
  request.end();
  const auto found = wills_.find(key);
  const std::size_t freed = found == wills_.end() ? 0 : key.size() + found->second.size();
  const std::size_t bytes = will_bytes_ - freed + key.size() + value.size();
  if (bytes > kMaxWillBytes) {
    return reply(StoreStatus::refused, call, "the last wills of this client are too large");
  }
  will_bytes_ = bytes;
  wills_[key] = value;
  reply_ok(call);
}

void StoreSession::handle_cancel(std::uint64_t call) {
  const auto found = waiting_.find(call);
  if (found == waiting_.end()) return;  // its reply is on the way
  host_.table().unpark(*found->second);
  waiting_.erase(found);
}

void StoreSession::reply(StoreStatus status, std::uint64_t call, std::string_view payload) {
  FrameWriter frame(static_cast<std::uint8_t>(status), call);
  frame.raw(payload);
  enqueue({std::move(frame).str(), nullptr});
}

void StoreSession::reply_full(std::uint64_t call) {
  reply(StoreStatus::refused, call,
        "the store is full (" + std::to_string(host_.options().max_bytes) +
            " bytes); erase keys that are no longer needed");
}

void StoreSession::reply_value(std::uint64_t call, const StoreValue& value, bool with_flag) {
  FrameWriter head(static_cast<std::uint8_t>(StoreStatus::ok), call);
  if (with_flag) head.u8(value ? 1 : 0);
  enqueue({std::move(head).str(value ? value->size() : 0), value});
}

// Never closes the session at once: the table calls it while it walks its waiters.
void StoreSession::enqueue(Outgoing message) {
  if (closed_) return;
  backlog_ += message.head.size() + (message.body ? message.body->size() : 0);
  outgoing_.push_back(std::move(message));
  if (writing_ == 0) write();
}

void StoreSession::write() {
  writing_ = std::min(outgoing_.size(), kMaxGather);
  std::vector<asio::const_buffer> buffers;
  buffers.reserve(2 * writing_);
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < writing_; ++i) {
    buffers.push_back(asio::buffer(outgoing_[i].head));
    if (outgoing_[i].body) buffers.push_back(asio::buffer(*outgoing_[i].body));
  }
  for (const asio::const_buffer& buffer : buffers) bytes += buffer.size();
  asio::async_write(socket_, buffers,
                    [self = shared_from_this(), bytes](const asio::error_code& error, std::size_t) {
                      const std::size_t written = std::exchange(self->writing_, 0);
                      if (self->closed_) return;
                      if (error) return self->close();
                      self->backlog_ -= bytes;
                      self->outgoing_.erase(
                          self->outgoing_.begin(),
                          self->outgoing_.begin() + static_cast<std::ptrdiff_t>(written));
                      if (!self->outgoing_.empty()) return self->write();
                      if (self->closing_after_write_) return self->close();
                      self->read();
                    });
}

}  // namespace cohort::comm
