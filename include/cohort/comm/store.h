#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cohort/core/deadline.h"

namespace cohort::comm {

// Limits of every store: keys are names, values are at most what one rank may publish at once.
inline constexpr std::size_t kMaxStoreKey = 1024;                // bytes
inline constexpr std::size_t kMaxStoreValue = 64 * 1024 * 1024;  // bytes
inline constexpr std::size_t kMaxStoreWaitKeys = 16384;          // keys of one wait()
inline constexpr Milliseconds kDefaultStoreTimeout{300'000};     // of a call that names none

// A small key-value service through which the ranks of a job find and watch each other. Keys are
// names of 1 to 1024 bytes, values any bytes up to 64 MiB.
//
// Thread safety: every function may be called from any thread at any time; calls that wait do not
// hold up calls of other threads.
// Deadlines: every call takes a timeout; without one the store's own `timeout()` holds. A call that
// misses it throws TimeoutError; whether a writing call still took effect is then unknown.
// Errors: InvalidArgument for a key or value outside the limits; StoreError when the store refuses
// or is gone, after which every call of this object fails.
class Store {
 public:
  using Timeout = std::optional<Milliseconds>;

  explicit Store(Milliseconds timeout) : timeout_(timeout) {}
  Store(const Store&) = delete;
  Store& operator=(const Store&) = delete;
  virtual ~Store() = default;

  // Sets `key`, replacing what was there, and wakes those who wait for it.
  void set(std::string_view key, std::string_view value, Timeout timeout = {});
  // Waits until `key` is set and returns its value.
  std::string get(std::string_view key, Timeout timeout = {});
  // The value of `key` now, or nothing.
  std::optional<std::string> try_get(std::string_view key, Timeout timeout = {});
  // Adds to the decimal number at `key` (absent counts as 0) and returns the sum. InvalidArgument
  // when the value is no number or the sum leaves 64 bits.
  std::int64_t add(std::string_view key, std::int64_t delta, Timeout timeout = {});
  // Sets `key` to `desired` if its value is `expected` (nothing: if it is absent); tells whether it
  // did. The two values together obey the limit of one.
  bool compare_and_set(std::string_view key, const std::optional<std::string>& expected,
                       std::string_view desired, Timeout timeout = {});
  // Removes `key`; tells whether it was there.
  bool erase(std::string_view key, Timeout timeout = {});
  // Waits until all of `keys` are set at once.
  void wait(const std::vector<std::string>& keys, Timeout timeout = {});

  // Arms a last will: when this client's connection ends without goodbye() (a crash, SIGKILL, a
  // lost host), the store sets `key` to `value`. Peers wait for such a key to learn of a death.
  // Several keys may be armed; arming one again replaces its value.
  void set_on_disconnect(std::string_view key, std::string_view value, Timeout timeout = {});
  // Says that this client leaves in good order: its last wills are void. Destruction alone does not
  // say so, because a rank may be unwinding from an error.
  void goodbye(Timeout timeout = {});

  // Timeout of calls that name none.
  Milliseconds timeout() const { return timeout_; }

 protected:
  friend class PrefixStore;
  virtual void do_set(const std::string& key, std::string value, Deadline deadline) = 0;
  virtual std::string do_get(const std::string& key, Deadline deadline) = 0;
  virtual std::optional<std::string> do_try_get(const std::string& key, Deadline deadline) = 0;
  virtual std::int64_t do_add(const std::string& key, std::int64_t delta, Deadline deadline) = 0;
  virtual bool do_compare_and_set(const std::string& key,
                                  const std::optional<std::string>& expected, std::string desired,
                                  Deadline deadline) = 0;
  virtual bool do_erase(const std::string& key, Deadline deadline) = 0;
  virtual void do_wait(const std::vector<std::string>& keys, Deadline deadline) = 0;
  virtual void do_set_on_disconnect(const std::string& key, std::string value,
                                    Deadline deadline) = 0;
  virtual void do_goodbye(Deadline deadline) = 0;

 private:
  Deadline deadline(Timeout timeout) const { return Deadline::after(timeout.value_or(timeout_)); }

  const Milliseconds timeout_;
};

// A store inside one process, for ranks that are threads. Each object is one client; clients made
// by connect() share the data, which lives as long as any of them. A client's destruction is its
// disconnection.
class MemoryStore final : public Store {
 public:
  explicit MemoryStore(Milliseconds timeout = kDefaultStoreTimeout);
  ~MemoryStore() override;
  // Another client of the same data, with the same timeout.
  std::shared_ptr<MemoryStore> connect() const;

 private:
  struct State;
  MemoryStore(std::shared_ptr<State> state, Milliseconds timeout);

  void do_set(const std::string& key, std::string value, Deadline deadline) override;
  std::string do_get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> do_try_get(const std::string& key, Deadline deadline) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, Deadline deadline) override;
  bool do_compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                          std::string desired, Deadline deadline) override;
  bool do_erase(const std::string& key, Deadline deadline) override;
  void do_wait(const std::vector<std::string>& keys, Deadline deadline) override;
  void do_set_on_disconnect(const std::string& key, std::string value, Deadline deadline) override;
  void do_goodbye(Deadline deadline) override;

  std::shared_ptr<State> state_;
  std::vector<std::pair<std::string, std::string>> wills_;  // guarded by the state's mutex
};

// A view of another store in which every key starts with "<prefix>/". goodbye() is the underlying
// client's, wills of other views included.
class PrefixStore final : public Store {
 public:
  PrefixStore(std::string prefix, std::shared_ptr<Store> store);

 private:
  std::string full(const std::string& key) const;

  void do_set(const std::string& key, std::string value, Deadline deadline) override;
  std::string do_get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> do_try_get(const std::string& key, Deadline deadline) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, Deadline deadline) override;
  bool do_compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                          std::string desired, Deadline deadline) override;
  bool do_erase(const std::string& key, Deadline deadline) override;
  void do_wait(const std::vector<std::string>& keys, Deadline deadline) override;
  void do_set_on_disconnect(const std::string& key, std::string value, Deadline deadline) override;
  void do_goodbye(Deadline deadline) override;

  std::string prefix_;
  std::shared_ptr<Store> store_;
};

// What tells one job from another. Without a secret, whoever reaches the port and knows the job id
// can join; `cohort run` makes a random secret for every job.
struct StoreCredentials {
  std::string job_id;
  std::string secret;
};

struct StoreServerOptions {
  // The one address to listen on: a name or a number. Other interfaces do not see the port.
  std::string bind_address = "127.0.0.1";
  std::uint16_t port = 0;  // 0: the system picks
  StoreCredentials credentials = {};

  // Bounds, so that strangers and faulty clients can neither stop the server nor make it grow.
  std::size_t max_connections = 16384;
  std::size_t max_unauthenticated = 256;         // beyond: the oldest one is dropped
  std::size_t max_parked_calls = 4096;           // waiting calls per connection
  std::size_t max_bytes = std::size_t{1} << 30;  // keys and values together
  Milliseconds handshake_timeout{5'000};         // from accept to proof of the secret
  Milliseconds frame_timeout{30'000};            // without a byte in the middle of a frame
};

// The server behind TcpStore: one event-loop thread, started by the constructor and joined by the
// destructor, which drops all connections. The constructor throws StoreError when it cannot listen
// (the message names address and port and says what to do).
class StoreServer {
 public:
  struct Stats {
    std::size_t authenticated = 0;
    std::size_t unauthenticated = 0;
    std::size_t keys = 0;
    std::size_t bytes = 0;   // of keys and values
    std::size_t parked = 0;  // waiting calls
  };

  explicit StoreServer(StoreServerOptions options);
  ~StoreServer();
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;

  std::uint16_t port() const;
  Stats stats() const;  // thread-safe; a moment's picture

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct TcpStoreOptions {
  std::string host = "127.0.0.1";  // where the server is
  std::uint16_t port = 0;          // 0 only together with host_server
  StoreCredentials credentials = {};
  Milliseconds timeout = kDefaultStoreTimeout;
  // Until when the constructor tries to reach a server that is not up yet.
  Milliseconds connect_timeout{60'000};
  // This client also owns the server. It listens on `bind_address`, or on `host` when that is
  // empty.
  bool host_server = false;
  std::string bind_address = {};
};

class StoreConnection;

// A client of a StoreServer over TCP. Client and server prove to each other that they know the
// job's secret (keyed BLAKE2b over fresh nonces) before any key is spoken of. When the server dies,
// every pending and every later call throws StoreError at once.
//
// The constructor throws StoreError when the port belongs to another job, the secret differs, or
// (host_server) the port is taken; TimeoutError when nobody answers within `connect_timeout`. The
// name of the host is resolved by the system, under the system's own time limit.
// No thread is started for a client; the sockets are closed on exec. Do not use it across fork.
class TcpStore final : public Store {
 public:
  explicit TcpStore(const TcpStoreOptions& options);
  ~TcpStore() override;

  // The server's port, also when the system picked it.
  std::uint16_t port() const { return port_; }

 private:
  void do_set(const std::string& key, std::string value, Deadline deadline) override;
  std::string do_get(const std::string& key, Deadline deadline) override;
  std::optional<std::string> do_try_get(const std::string& key, Deadline deadline) override;
  std::int64_t do_add(const std::string& key, std::int64_t delta, Deadline deadline) override;
  bool do_compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                          std::string desired, Deadline deadline) override;
  bool do_erase(const std::string& key, Deadline deadline) override;
  void do_wait(const std::vector<std::string>& keys, Deadline deadline) override;
  void do_set_on_disconnect(const std::string& key, std::string value, Deadline deadline) override;
  void do_goodbye(Deadline deadline) override;

  std::unique_ptr<StoreServer> server_;  // before the connection: destroyed after it
  std::uint16_t port_;
  std::unique_ptr<StoreConnection> connection_;
};

}  // namespace cohort::comm
