#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include "cohort/core/deadline.h"

namespace cohort::comm::gloo {

using Device = ::gloo::transport::Device;
using Buffer = ::gloo::transport::UnboundBuffer;

// A socket whose other end has gone raises SIGPIPE in the thread that writes to it, which by
// default ends the program. Blocked while this lives, in this thread and in those that it starts.
class NoSigpipe {
 public:
  NoSigpipe();
  ~NoSigpipe();
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t before_;
  bool was_pending_;
};

// The loop thread and the listening sockets of one address. Error when Gloo cannot use it.
std::shared_ptr<Device> make_device(const std::string& address);

// One rank's Gloo connections to all others of its group. Made of what all releases of Gloo share:
// a transport context and its pairs, whose addresses we exchange ourselves. Its waits have no
// deadline; close() and Buffer's aborts end them. Posting and waiting is for the rank's queue;
// close() may come from any thread.
class Mesh {
 public:
  Mesh(const std::shared_ptr<Device>& device, int rank, int size, Deadline deadline);
  // The connections end softly: what has been written still arrives.
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  // Where `peer` is to connect to.
  std::string address_for(int peer) const;
  // In the order of ranks, on all ranks at the same time. Error when it fails.
  void connect(int peer, const std::string& address);
  // Over memory that must stay until the buffer has gone; the buffer must stay until what was
  // posted to it is done, or the mesh is closed.
  std::unique_ptr<Buffer> buffer(void* data, std::size_t bytes);
  // Ends a connection at once: nothing is read into or sent from anybody's memory any more. Gloo's
  // thread ends the program of a peer that is just accepting it, or being accepted.
  void close(int peer) noexcept;

 private:
  const std::shared_ptr<::gloo::transport::Context> context_;
};

}  // namespace cohort::comm::gloo
