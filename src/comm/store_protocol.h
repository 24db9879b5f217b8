#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include "cohort/comm/store.h"

// The wire format between TcpStore and StoreServer, after the handshake. All numbers are little
// endian. A frame in either direction is
//   u32 length of what follows | u8 code | u64 call | payload
// where the code is a StoreOp in a request and a StoreStatus in a reply, and a reply repeats the
// call number of its request. Replies come in any order. A string is u32 length | bytes.
//
//   op                payload of the request                payload of an `ok` reply
//   set               key, value                            -
//   get               key                                   value (waits for the key)
//   try_get           key                                   u8 present, value
//   add               key, i64 delta                        i64 sum
//   compare_and_set   key, u8 expects, expected, desired    u8 done
//   erase             key                                   u8 was there
//   wait              u32 count, keys                       - (waits for the keys)
//   set_on_disconnect key, value                            -
//   goodbye           -                                     -
//   cancel            u64 call                              no reply, none for that call either
//
// The payload of any other reply is a message. A malformed frame ends the connection.
namespace cohort::comm {

enum class StoreOp : std::uint8_t {
  set = 1,
  get,
  try_get,
  add,
  compare_and_set,
  erase,
  wait,
  set_on_disconnect,
  goodbye,
  cancel,
};

enum class StoreStatus : std::uint8_t { ok = 0, invalid_argument, refused };

inline constexpr std::size_t kFrameLength = 4;    // the length field
inline constexpr std::size_t kFrameHead = 1 + 8;  // code and call
// The largest frame is a wait for as many of the longest keys as allowed or a value with its key:
// 16384 * (1024 + 4) bytes is 16 MiB, a value 64 MiB; 64 KiB cover key, lengths and head.
inline constexpr std::size_t kMaxFrame = kMaxStoreValue + 64 * 1024;

// The peer sent something that is no frame of the protocol.
class ProtocolError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Builds a frame; `str()` closes it.
class FrameWriter {
 public:
  FrameWriter(std::uint8_t code, std::uint64_t call);
  FrameWriter& u8(std::uint8_t value);
  FrameWriter& u32(std::uint32_t value);
  FrameWriter& u64(std::uint64_t value);
  FrameWriter& string(std::string_view value);
  FrameWriter& raw(std::string_view value);  // bytes up to the end of the frame
  // The frame; `body` more bytes that the caller sends behind it count into its length.
  std::string str(std::size_t body = 0) &&;

 private:
  std::string bytes_;
};

// Reads a frame's fields; throws ProtocolError where they end too early.
class FrameReader {
 public:
  explicit FrameReader(std::string_view frame) : rest_(frame) {}
  std::uint8_t u8();
  std::uint32_t u32();
  std::uint64_t u64();
  std::string_view string(std::size_t limit);
  std::string_view key() { return string(kMaxStoreKey); }
  std::string_view value() { return string(kMaxStoreValue); }
  std::string_view raw();  // everything that is left
  void end() const;        // throws unless everything was read

 private:
  std::string_view take(std::size_t count);
  std::string_view rest_;
};

// Collects bytes of a stream and cuts them into frames (without their length field). Memory grows
// with the bytes that arrived, never with the length that a peer claims.
class FrameBuffer {
 public:
  void append(const char* data, std::size_t size) { bytes_.append(data, size); }
  // The next complete frame, valid until the next call; throws ProtocolError for a bad length.
  std::optional<std::string_view> next();
  // Forgets the frames handed out; call it once they are done with.
  void compact();
  bool partial() const { return start_ < bytes_.size(); }

 private:
  std::string bytes_;
  std::size_t start_ = 0;
};

}  // namespace cohort::comm
