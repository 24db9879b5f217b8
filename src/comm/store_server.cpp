#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <asio.hpp>
#include <cerrno>
#include <future>
#include <list>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cohort/comm/store.h"
#include "comm/store_session.h"
#include "comm/store_socket.h"

namespace cohort::comm {
namespace {

constexpr std::size_t kReadBuffer = 256 * 1024;
// Connections taken in one go, so that a flood of them leaves the clients their turn.
constexpr int kAcceptBatch = 64;
// After accept failed for want of descriptors or memory.
constexpr Milliseconds kAcceptPause{50};

}  // namespace

class StoreServer::Impl final : public StoreSessionHost {
 public:
  explicit Impl(StoreServerOptions options)
      : options_(std::move(options)),
        keys_(options_.credentials),
        table_(options_.max_bytes),
        buffer_(kReadBuffer),
        acceptor_(io_),
        pause_(io_) {
    Listener listener = listen_on(options_.bind_address, options_.port);
    port_ = listener.port;
    protocol_ = listener.ipv6 ? asio::ip::tcp::v6() : asio::ip::tcp::v4();
    acceptor_.assign(protocol_, listener.fd.release());
    accept();
    // The process's signals are for its own threads.
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::thread([this] { io_.run(); });
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  ~Impl() {
    asio::post(io_, [this] { stop(); });
    thread_.join();
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::uint16_t port() const { return port_; }

  Stats stats() {
    std::promise<Stats> result;
    asio::post(io_, [&] {
      result.set_value(
          {authenticated_, strangers_.size(), table_.size(), table_.bytes(), table_.parked()});
    });
    return result.get_future().get();
  }

 private:
  using Sessions = std::list<std::shared_ptr<StoreSession>>;

  StoreTable& table() override { return table_; }
  const StoreServerOptions& options() const override { return options_; }
  asio::mutable_buffer read_buffer() override { return asio::buffer(buffer_); }

  bool admit(StoreSession& session) override {
    if (authenticated_ >= options_.max_connections) return false;
    const auto found = places_.find(&session);
    members_.splice(members_.end(), strangers_, found->second);
    ++authenticated_;
    return true;
  }

  void leave(StoreSession& session) override {
    const auto found = places_.find(&session);
    if (session.authenticated()) {
      members_.erase(found->second);
      --authenticated_;
    } else {
      strangers_.erase(found->second);
    }
    places_.erase(found);
  }

  void accept() {
    acceptor_.async_wait(asio::ip::tcp::acceptor::wait_read, [this](const asio::error_code& error) {
      if (error) return;  // stopping
      for (int i = 0; i < kAcceptBatch; ++i) {
        UniqueFd fd(
            ::accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (fd) {
          add(std::move(fd));
        } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
          return relieve();
        } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
          break;
        }
      }
      accept();
    });
  }

  void add(UniqueFd fd) {
    // The oldest stranger goes: a real rank needs milliseconds to prove itself, and tries again.
    if (strangers_.size() >= options_.max_unauthenticated) drop_oldest_stranger();
    tune_socket(fd.get());
    asio::ip::tcp::socket socket(io_);
    socket.assign(protocol_, fd.release());
    socket.non_blocking(true);
    const auto session = std::make_shared<StoreSession>(*this, keys_, std::move(socket));
    strangers_.push_back(session);
    places_.emplace(session.get(), std::prev(strangers_.end()));
    session->start();
  }

  void drop_oldest_stranger() {
    const std::shared_ptr<StoreSession> oldest = strangers_.front();
    oldest->close();
  }

  // Out of descriptors: strangers make room; then new ones are left in the backlog for a moment.
  void relieve() {
    if (!strangers_.empty()) drop_oldest_stranger();
    pause_.expires_after(kAcceptPause);
    pause_.async_wait([this](const asio::error_code& error) {
      if (!error) accept();
    });
  }

  void stop() {
    asio::error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    while (!strangers_.empty()) std::shared_ptr(strangers_.front())->close();
    while (!members_.empty()) std::shared_ptr(members_.front())->close();
  }

  const StoreServerOptions options_;
  const HandshakeKeys keys_;
  std::uint16_t port_ = 0;
  asio::ip::tcp protocol_ = asio::ip::tcp::v4();

  // Touched by the event loop's thread alone.
  StoreTable table_;
  std::vector<char> buffer_;
  Sessions strangers_;  // oldest first
  Sessions members_;
  std::unordered_map<StoreSession*, Sessions::iterator> places_;
  std::size_t authenticated_ = 0;

  asio::io_context io_{1};
  asio::ip::tcp::acceptor acceptor_;
  asio::steady_timer pause_;
  std::thread thread_;
};

StoreServer::StoreServer(StoreServerOptions options)
    : impl_(std::make_unique<Impl>(std::move(options))) {}

StoreServer::~StoreServer() = default;

std::uint16_t StoreServer::port() const {
  return impl_->port();
}

StoreServer::Stats StoreServer::stats() const {
  return impl_->stats();
}

}  // namespace cohort::comm
