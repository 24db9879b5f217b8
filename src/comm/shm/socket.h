#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <type_traits>

#include "cohort/core/deadline.h"
#include "comm/shm/mapping.h"

namespace cohort::comm::shm {

// Unix sockets with abstract names: no file, gone with the process; messages stay whole and can
// carry a file descriptor.

using Nonce = std::array<std::uint8_t, 16>;
Nonce random_nonce();
std::uint64_t random_word();
std::string to_hex(const Nonce& nonce);
std::optional<Nonce> nonce_from_hex(const std::string& text);

// Listens under a random name, which it returns in `name`. Error when the system refuses.
Descriptor listen_abstract(std::string& name);
// Nothing when nobody listens there: the name's owner is not on this host, or has gone.
std::optional<Descriptor> connect_abstract(const std::string& name);
// The next connection whose process belongs to this process's user; nothing when `slice` passed.
std::optional<Descriptor> accept_same_user(const Descriptor& listener, Milliseconds slice);
// True when the other end belongs to this process's user.
bool same_user(const Descriptor& socket);
// A descriptor that becomes readable when the process at the other end has ended; none for this
// very process or one in another PID namespace.
Descriptor watch_process(const Descriptor& socket);

// Sends one message; false when the other end is gone or does not take it within two seconds.
bool send_bytes(const Descriptor& socket, const void* data, std::size_t bytes, int file = -1);
// Receives one message of exactly `bytes`, with the file that came with it, if any. False when
// `slice` passed first. Error when the other end is gone or says something else.
bool receive_bytes(const Descriptor& socket, void* data, std::size_t bytes, Descriptor& file,
                   Milliseconds slice);

// True once the other end of the socket is closed, or the watched process has ended.
bool hung_up(const Descriptor& socket, const Descriptor& process);

}  // namespace cohort::comm::shm
