#include "comm/store_protocol.h"

#include <utility>

namespace cohort::comm {
namespace {

template <typename T>
void put(std::string& bytes, std::size_t at, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) bytes[at + i] = static_cast<char>(value >> (8 * i));
}

template <typename T>
T load(std::string_view bytes) {
  T value = 0;
  for (std::size_t i = 0; i < sizeof(T); ++i) {
    value |= static_cast<T>(static_cast<std::uint8_t>(bytes[i])) << (8 * i);
  }
  return value;
}

template <typename T>
void append(std::string& bytes, T value) {
  bytes.resize(bytes.size() + sizeof(T));
  put(bytes, bytes.size() - sizeof(T), value);
}

}  // namespace

FrameWriter::FrameWriter(std::uint8_t code, std::uint64_t call) {
  bytes_.resize(kFrameLength);
  u8(code).u64(call);
}

FrameWriter& FrameWriter::u8(std::uint8_t value) {
  bytes_.push_back(static_cast<char>(value));
  return *this;
}

FrameWriter& FrameWriter::u32(std::uint32_t value) {
  append(bytes_, value);
  return *this;
}

FrameWriter& FrameWriter::u64(std::uint64_t value) {
  append(bytes_, value);
  return *this;
}

FrameWriter& FrameWriter::string(std::string_view value) {
  return u32(static_cast<std::uint32_t>(value.size())).raw(value);
}

FrameWriter& FrameWriter::raw(std::string_view value) {
  bytes_.append(value);
  return *this;
}

std::string FrameWriter::str(std::size_t body) && {
  put(bytes_, 0, static_cast<std::uint32_t>(bytes_.size() - kFrameLength + body));
  return std::move(bytes_);
}

std::string_view FrameReader::take(std::size_t count) {
  if (count > rest_.size()) throw ProtocolError("a frame ends in the middle of a field");
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

std::uint8_t FrameReader::u8() {
  return load<std::uint8_t>(take(1));
}
std::uint32_t FrameReader::u32() {
  return load<std::uint32_t>(take(4));
}
std::uint64_t FrameReader::u64() {
  return load<std::uint64_t>(take(8));
}

std::string_view FrameReader::string(std::size_t limit) {
  const std::uint32_t size = u32();
  if (size > limit) throw ProtocolError("a field is longer than allowed");
  return take(size);
}

std::string_view FrameReader::raw() {
  return take(rest_.size());
}

void FrameReader::end() const {
  if (!rest_.empty()) throw ProtocolError("a frame has bytes behind its last field");
}

std::optional<std::string_view> FrameBuffer::next() {
  const std::string_view rest = std::string_view(bytes_).substr(start_);
  if (rest.size() < kFrameLength) return std::nullopt;
  const std::size_t length = load<std::uint32_t>(rest);
  if (length < kFrameHead || length > kMaxFrame) throw ProtocolError("a frame has a bad length");
  if (rest.size() < kFrameLength + length) return std::nullopt;
  start_ += kFrameLength + length;
  return rest.substr(kFrameLength, length);
}

void FrameBuffer::compact() {
  bytes_.erase(0, start_);
  start_ = 0;
  // One large value must not pin its memory for the rest of the connection.
  if (bytes_.empty() && bytes_.capacity() > 1024 * 1024) bytes_.shrink_to_fit();
}

}  // namespace cohort::comm
