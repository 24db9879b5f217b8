#include <utility>

#include "cohort/comm/store.h"
#include "cohort/core/error.h"
#include "comm/store_client.h"
#include "comm/store_protocol.h"

namespace cohort::comm {
namespace {

std::unique_ptr<StoreServer> host(const TcpStoreOptions& options) {
  if (!options.host_server) {
    check(options.port != 0, "[TcpStore] port 0 is for the client that hosts the server");
    return nullptr;
  }
  StoreServerOptions server;
  server.bind_address = options.bind_address.empty() ? options.host : options.bind_address;
  server.port = options.port;
  server.credentials = options.credentials;
  return std::make_unique<StoreServer>(std::move(server));
}

// One call: `fill` writes the fields of the request behind its head.
template <typename Fill>
std::string call(StoreConnection& connection, StoreOp op, Deadline deadline, const char* what,
                 std::string_view key, Fill&& fill) {
  const std::uint64_t number = connection.next_call();
  FrameWriter request(static_cast<std::uint8_t>(op), number);
  fill(request);
  return connection.call(op, std::move(request), number, deadline, what, key);
}

bool flag(const std::string& reply) {
  return FrameReader(reply).u8() != 0;
}

}  // namespace

TcpStore::TcpStore(const TcpStoreOptions& options)
    : Store(options.timeout),
      server_(host(options)),
      port_(server_ ? server_->port() : options.port),
      connection_(std::make_unique<StoreConnection>(
          server_ && !options.bind_address.empty() ? options.bind_address : options.host, port_,
          options.credentials, Deadline::after(options.connect_timeout))) {}

TcpStore::~TcpStore() = default;

void TcpStore::do_set(const std::string& key, std::string value, Deadline deadline) {
  call(*connection_, StoreOp::set, deadline, "store.set", key,
       [&](FrameWriter& request) { request.string(key).string(value); });
}

std::string TcpStore::do_get(const std::string& key, Deadline deadline) {
  return call(*connection_, StoreOp::get, deadline, "store.get", key,
              [&](FrameWriter& request) { request.string(key); });
}

std::optional<std::string> TcpStore::do_try_get(const std::string& key, Deadline deadline) {
  std::string reply = call(*connection_, StoreOp::try_get, deadline, "store.try_get", key,
                           [&](FrameWriter& request) { request.string(key); });
  if (!flag(reply)) return std::nullopt;
  reply.erase(0, 1);
  return reply;
}

std::int64_t TcpStore::do_add(const std::string& key, std::int64_t delta, Deadline deadline) {
  const std::string reply = call(
      *connection_, StoreOp::add, deadline, "store.add", key,
      [&](FrameWriter& request) { request.string(key).u64(static_cast<std::uint64_t>(delta)); });
  return static_cast<std::int64_t>(FrameReader(reply).u64());
}

bool TcpStore::do_compare_and_set(const std::string& key,
                                  const std::optional<std::string>& expected, std::string desired,
                                  Deadline deadline) {
  return flag(call(*connection_, StoreOp::compare_and_set, deadline, "store.compare_and_set", key,
                   [&](FrameWriter& request) {
                     request.string(key).u8(expected ? 1 : 0);
                     request.string(expected.value_or("")).string(desired);
                   }));
}

bool TcpStore::do_erase(const std::string& key, Deadline deadline) {
  return flag(call(*connection_, StoreOp::erase, deadline, "store.erase", key,
                   [&](FrameWriter& request) { request.string(key); }));
}

void TcpStore::do_wait(const std::vector<std::string>& keys, Deadline deadline) {
  const std::string named =
      keys.size() == 1 ? keys.front() : str(keys.size(), " keys from '", keys.front(), "'");
  call(*connection_, StoreOp::wait, deadline, "store.wait", named, [&](FrameWriter& request) {
    request.u32(static_cast<std::uint32_t>(keys.size()));
    for (const std::string& key : keys) request.string(key);
  });
}

void TcpStore::do_set_on_disconnect(const std::string& key, std::string value, Deadline deadline) {
  call(*connection_, StoreOp::set_on_disconnect, deadline, "store.set_on_disconnect", key,
       [&](FrameWriter& request) { request.string(key).string(value); });
}

void TcpStore::do_goodbye(Deadline deadline) {
  call(*connection_, StoreOp::goodbye, deadline, "store.goodbye", "goodbye", [](FrameWriter&) {});
}

}  // namespace cohort::comm
