#include "comm/gloo/mesh.h"

#include <gloo/transport/address.h>
#include <gloo/transport/pair.h>
#include <gloo/transport/tcp/device.h>

#include <ctime>

#include "cohort/core/error.h"

namespace cohort::comm::gloo {

NoSigpipe::NoSigpipe() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before_);
  sigset_t pending;
  sigpending(&pending);
  was_pending_ = sigismember(&pending, SIGPIPE) != 0;
}

NoSigpipe::~NoSigpipe() {
  sigset_t pipe;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  // Ours, if one came meanwhile.
  const timespec at_once{};
  if (!was_pending_) sigtimedwait(&pipe, nullptr, &at_once);
  pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

std::shared_ptr<Device> make_device(const std::string& address) {
  const NoSigpipe guard;
  ::gloo::transport::tcp::attr attributes;
  attributes.hostname = address;
  try {
    return ::gloo::transport::tcp::CreateDevice(attributes);
  } catch (const std::exception& error) {
    throw Error(str("[init] Gloo cannot use the address ", address, ": ", error.what(),
                    "; name another interface in COHORT_SOCKET_IFNAME"));
  }
}

Mesh::Mesh(const std::shared_ptr<Device>& device, int rank, int size, Deadline deadline)
    : context_(device->createContext(rank, size)) {
  // A pair takes five times this to connect.
  context_->setTimeout(std::max(Milliseconds(1), deadline.left() / 5));
  for (int peer = 0; peer < size; ++peer) {
    if (peer != rank) context_->createPair(peer);
  }
  // No wait gives up by itself; Gloo adds this to now, so it must not be too large.
  context_->setTimeout(std::chrono::hours(24 * 365));
}

Mesh::~Mesh() = default;

std::string Mesh::address_for(int peer) const {
  const std::vector<char> bytes = context_->getPair(peer)->address().bytes();
  return {bytes.begin(), bytes.end()};
}

void Mesh::connect(int peer, const std::string& address) {
  const NoSigpipe guard;
  try {
    context_->getPair(peer)->connect(std::vector<char>(address.begin(), address.end()));
  } catch (const std::exception& error) {
    throw Error(str("[init] no connection to rank ", peer, ": ", error.what()));
  }
}

std::unique_ptr<Buffer> Mesh::buffer(void* data, std::size_t bytes) {
  return context_->createUnboundBuffer(data, bytes);
}

void Mesh::close(int peer) noexcept {
  try {
    context_->getPair(peer)->close();
  } catch (const std::exception&) {
    return;  // it was closed
  }
}

}  // namespace cohort::comm::gloo
