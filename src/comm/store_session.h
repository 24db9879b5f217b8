#pragma once

#include <asio.hpp>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "comm/store_handshake.h"
#include "comm/store_protocol.h"
#include "comm/store_table.h"

namespace cohort::comm {

class StoreSession;

// What a session needs from its server. All of it belongs to the event loop's thread.
class StoreSessionHost {
 public:
  virtual StoreTable& table() = 0;
  virtual const StoreServerOptions& options() const = 0;
  // A buffer for one read, shared by all sessions: idle connections cost no buffers.
  virtual asio::mutable_buffer read_buffer() = 0;
  // The session proved itself; false when there are too many.
  virtual bool admit(StoreSession& session) = 0;
  // The session has ended and may be destroyed once its handlers have run.
  virtual void leave(StoreSession& session) = 0;

 protected:
  ~StoreSessionHost() = default;
};

// The server's side of one connection: handshake, then requests. Every handler runs on the event
// loop's thread. Nothing here blocks, and nothing that the peer sends can throw out of a handler.
class StoreSession : public std::enable_shared_from_this<StoreSession> {
 public:
  StoreSession(StoreSessionHost& host, const HandshakeKeys& keys, asio::ip::tcp::socket socket);
  void start();
  // Ends the connection; the last wills of a client that said no goodbye take effect.
  void close();
  bool authenticated() const { return authenticated_; }

 private:
  struct Outgoing {
    std::string head;
    StoreValue body;  // may be null
  };

  void read();
  void on_readable();
  void feed_handshake(std::string_view bytes);
  void feed_frames(std::string_view bytes);
  void watch_progress();
  void expire_after(Milliseconds timeout);

  void handle(std::string_view frame);
  void handle_set(std::uint64_t call, FrameReader& request);
  void handle_add(std::uint64_t call, FrameReader& request);
  void handle_compare_and_set(std::uint64_t call, FrameReader& request);
  void handle_wait(std::uint64_t call, std::vector<std::string> keys, bool wants_value);
  void handle_will(std::uint64_t call, FrameReader& request);
  void handle_cancel(std::uint64_t call);

  void reply_ok(std::uint64_t call) { reply(StoreStatus::ok, call, {}); }
  void reply(StoreStatus status, std::uint64_t call, std::string_view payload);
  void reply_full(std::uint64_t call);
  void reply_value(std::uint64_t call, const StoreValue& value, bool with_flag);
  void enqueue(Outgoing message);
  void write();
  void close_after_reply(const std::string& reply);

  StoreSessionHost& host_;
  asio::ip::tcp::socket socket_;
  asio::steady_timer timer_;
  std::optional<ServerHandshake> handshake_;
  std::string hello_;  // bytes of the handshake message that is on its way
  bool authenticated_ = false;
  bool closed_ = false;
  bool reading_ = false;
  bool closing_after_write_ = false;
  bool expired_armed_ = false;
  FrameBuffer input_;
  std::deque<Outgoing> outgoing_;
  std::size_t writing_ = 0;  // messages of outgoing_ that are being written
  std::size_t backlog_ = 0;  // bytes of outgoing_
  std::unordered_map<std::uint64_t, std::shared_ptr<StoreTable::Waiter>> waiting_;
  std::unordered_map<std::string, std::string> wills_;
  std::size_t will_bytes_ = 0;
};

}  // namespace cohort::comm
