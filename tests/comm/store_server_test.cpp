// The server under attack and the death of either side, over real sockets and processes.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>
#include <random>
#include <thread>

#include "cohort/comm/store.h"
#include "cohort/core/error.h"
#include "comm/store_handshake.h"
#include "comm/store_protocol.h"
#include "comm/store_socket.h"
#include "support/child_process.h"

namespace cohort::comm {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using test::eventually;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const StoreCredentials kJob{"job", "secret"};

TcpStoreOptions client_of(std::uint16_t port, StoreCredentials credentials = kJob) {
  return {
      .port = port, .credentials = std::move(credentials), .timeout = 20s, .connect_timeout = 20s};
}

// A raw connection, for those who do not keep to the protocol.
class RawClient {
 public:
  explicit RawClient(std::uint16_t port) {
    std::string why;
    fd_ = connect_to("127.0.0.1", port, Deadline::after(20s), why);
    if (!fd_) throw std::runtime_error(why);
  }
  void send(std::string_view bytes) const {
    ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  // Waits until the server closes; what it sent before.
  std::string read_to_end() const {
    std::string all;
    char buffer[512];
    while (poll_for(fd_.get(), POLLIN, Deadline::after(20s))) {
      const ssize_t got = ::recv(fd_.get(), buffer, sizeof buffer, 0);
      if (got <= 0) return all;
      all.append(buffer, static_cast<std::size_t>(got));
    }
    return all + "<still open>";
  }
  std::string read(std::size_t size) const {
    std::string all;
    while (all.size() < size && poll_for(fd_.get(), POLLIN, Deadline::after(20s))) {
      char byte = 0;
      if (::recv(fd_.get(), &byte, 1, 0) <= 0) break;
      all.push_back(byte);
    }
    return all;
  }
  // Proves the job's secret, after which frames may follow.
  void authenticate() const {
    const ClientHandshake handshake(kJob);
    send(handshake.hello());
    std::string proof;
    ASSERT_EQ(handshake.judge(read(kAnswerSize), proof), ClientHandshake::Answer::proven);
    send(proof);
    ASSERT_EQ(read(1), "\1");
  }
  int fd() const { return fd_.get(); }

 private:
  UniqueFd fd_;
};

void expect_usable(std::uint16_t port) {
  TcpStore store(client_of(port));
  store.set("check", "ok");
  EXPECT_EQ(store.get("check"), "ok");
}

TEST(StoreServer, ATakenPortIsNamedWithWhatToDo) {
  const StoreServer first({.credentials = kJob});
  EXPECT_THAT(
      [&] {
        StoreServer({.port = first.port(), .credentials = {"other", "secret"}});
      },
      ThrowsMessage<StoreError>(AllOf(HasSubstr(std::to_string(first.port())), HasSubstr("in use"),
                                      HasSubstr("--master-port"))));
  expect_usable(first.port());
}

TEST(StoreServer, APortCanBeUsedAgainAtOnce) {
  std::uint16_t port = 0;
  for (int i = 0; i < 3; ++i) {
    const StoreServer server({.port = port, .credentials = kJob});
    port = server.port();
    expect_usable(port);
  }
}

TEST(StoreServer, ListensOnTheOneAddressItWasGiven) {
  const StoreServer server({.bind_address = "127.0.0.2", .credentials = kJob});
  auto options = client_of(server.port());
  options.connect_timeout = 50ms;
  EXPECT_THROW(TcpStore{options}, TimeoutError);
  options.host = "127.0.0.2";
  TcpStore store(options);
  store.set("key", "value");
}

TEST(StoreServer, AnAddressOfAnotherMachineIsAnError) {
  EXPECT_THAT([] { StoreServer({.bind_address = "192.0.2.1"}); },
              ThrowsMessage<StoreError>(AllOf(HasSubstr("192.0.2.1"), HasSubstr("--bind-addr"))));
  EXPECT_THAT([] { StoreServer({.bind_address = "no.such.host.invalid"}); },
              ThrowsMessage<StoreError>(HasSubstr("no.such.host.invalid")));
}

TEST(TcpStore, HostsTheServerAndTellsThePortThatTheSystemPicked) {
  TcpStoreOptions options = client_of(0);
  EXPECT_THROW(TcpStore{options}, InvalidArgument);
  options.host_server = true;
  TcpStore master(options);
  EXPECT_NE(master.port(), 0);
  TcpStore(client_of(master.port())).set("key", "value");
  EXPECT_EQ(master.get("key"), "value");
}

TEST(TcpStore, WaitsForAServerThatComesUpLater) {
  std::uint16_t port = 0;
  { port = StoreServer({.credentials = kJob}).port(); }
  auto client =
      std::async(std::launch::async, [&] { return TcpStore(client_of(port)).add("n", 1); });
  EXPECT_EQ(client.wait_for(50ms), std::future_status::timeout);
  const StoreServer server({.port = port, .credentials = kJob});
  EXPECT_EQ(client.get(), 1);
}

TEST(TcpStore, ReportsAServerThatNeverComes) {
  std::uint16_t port = 0;
  { port = StoreServer({.credentials = kJob}).port(); }
  auto options = client_of(port);
  options.connect_timeout = 100ms;
  EXPECT_THAT([&] { TcpStore{options}; },
              ThrowsMessage<TimeoutError>(HasSubstr(std::to_string(port))));
}

TEST(TcpStore, AWrongSecretIsRefusedAtOnce) {
  const StoreServer server({.credentials = kJob});
  EXPECT_THAT(
      [&] {
        TcpStore{client_of(server.port(), {"job", "guess"})};
      },
      ThrowsMessage<StoreError>(HasSubstr("COHORT_JOB_SECRET")));
  expect_usable(server.port());
}

TEST(TcpStore, TheStoreOfAnotherJobIsRecognised) {
  const StoreServer server({.credentials = kJob});
  EXPECT_THAT(
      [&] {
        TcpStore{client_of(server.port(), {"other job", "secret"})};
      },
      ThrowsMessage<StoreError>(AllOf(HasSubstr("another job"), HasSubstr("other job"))));
}

TEST(TcpStore, AnotherProgramOnThePortIsRecognised) {
  Listener listener = listen_on("127.0.0.1", 0);
  std::thread stranger([&] {
    poll_for(listener.fd.get(), POLLIN, Deadline::after(20s));
    const UniqueFd fd(::accept(listener.fd.get(), nullptr, nullptr));
    const std::string text = "HTTP/1.1 400 Bad Request\r\n" + std::string(200, ' ');
    ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    char buffer[256];
    while (::recv(fd.get(), buffer, sizeof buffer, 0) > 0) {
    }
  });
  EXPECT_THAT([&] { TcpStore{client_of(listener.port)}; },
              ThrowsMessage<StoreError>(HasSubstr("another program")));
  stranger.join();
}

TEST(Handshake, AServerWithoutTheSecretCannotPassForTheJobsOwn) {
  const ClientHandshake client(kJob);
  const HandshakeKeys impostor({"job", "guess"});
  ServerHandshake server(impostor);
  std::string proof = "untouched";
  EXPECT_EQ(client.judge(server.feed(client.hello()).reply, proof),
            ClientHandshake::Answer::wrong_secret);
  EXPECT_EQ(proof, "untouched");
}

TEST(Handshake, AProofIsWorthNothingOnAnotherConnection) {
  const HandshakeKeys keys(kJob);
  const ClientHandshake client(kJob);
  ServerHandshake first(keys);
  std::string proof;
  ASSERT_EQ(client.judge(first.feed(client.hello()).reply, proof), ClientHandshake::Answer::proven);
  ServerHandshake second(keys);
  const std::string answer = second.feed(client.hello()).reply;
  EXPECT_EQ(second.feed(proof).next, ServerHandshake::Next::rejected);
  // Nor does the server's own proof pass for the client's.
  ServerHandshake third(keys);
  const std::string reflected = third.feed(client.hello()).reply.substr(kAnswerSize - kProofSize);
  EXPECT_EQ(third.feed(reflected).next, ServerHandshake::Next::rejected);
  EXPECT_EQ(first.feed(proof).next, ServerHandshake::Next::done);
}

TEST(StoreServer, DropsStrangersWithoutAWord) {
  const StoreServer server({.credentials = kJob});
  const RawClient wrong_magic(server.port());
  wrong_magic.send(
      "GET / HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\nUser-Agent: something\r\n\r\n");
  EXPECT_EQ(wrong_magic.read_to_end(), "");
  expect_usable(server.port());
}

struct BadFrame {
  const char* name;
  std::string bytes;
};

std::string frame(StoreOp op, const std::function<void(FrameWriter&)>& fill) {
  FrameWriter writer(static_cast<std::uint8_t>(op), 1);
  fill(writer);
  return std::move(writer).str();
}

class BadFrames : public testing::TestWithParam<BadFrame> {};

INSTANTIATE_TEST_SUITE_P(
    Frames, BadFrames,
    testing::Values(
        BadFrame{"LengthZero", std::string(4, '\0')},
        BadFrame{"LengthEight", "\x08" + std::string(11, '\0')},
        BadFrame{"LengthMax", std::string(4, '\xff')},
        BadFrame{"JustOverTheLimit", std::string("\x01\x00\x01\x04", 4) + std::string(64, 'x')},
        BadFrame{"UnknownOperation", frame(static_cast<StoreOp>(99), [](FrameWriter&) {})},
        BadFrame{"OperationZero", frame(static_cast<StoreOp>(0), [](FrameWriter&) {})},
        BadFrame{"NoFields", frame(StoreOp::set, [](FrameWriter&) {})},
        BadFrame{"KeyTooLong",
                 frame(StoreOp::get, [](FrameWriter& f) { f.string(std::string(2000, 'k')); })},
        BadFrame{"KeyLongerThanTheFrame",
                 frame(StoreOp::get, [](FrameWriter& f) { f.u32(100).raw("abc"); })},
        BadFrame{"ValueLengthOverflow",
                 frame(StoreOp::set, [](FrameWriter& f) { f.string("k").u32(0xffffffff); })},
        BadFrame{"TrailingBytes",
                 frame(StoreOp::try_get, [](FrameWriter& f) { f.string("k").raw("more"); })},
        BadFrame{"WaitForBillions",
                 frame(StoreOp::wait, [](FrameWriter& f) { f.u32(0xfffffff0); })},
        BadFrame{"WaitForNothing", frame(StoreOp::wait, [](FrameWriter& f) { f.u32(0); })},
        BadFrame{"OneCallNumberTwice",
                 frame(StoreOp::get, [](FrameWriter& f) { f.string("k"); }) +
                     frame(StoreOp::get, [](FrameWriter& f) { f.string("k"); })}),
    [](const auto& info) { return info.param.name; });

TEST_P(BadFrames, EndTheConnectionOfTheirSenderAlone) {
  const StoreServer server({.credentials = kJob});
  TcpStore bystander(client_of(server.port()));
  const RawClient client(server.port());
  client.authenticate();
  client.send(GetParam().bytes);
  EXPECT_EQ(client.read_to_end(), "");
  bystander.set("key", "value");
  EXPECT_EQ(bystander.get("key"), "value");
  EXPECT_EQ(server.stats().authenticated, 1u);
}

TEST(StoreServer, SurvivesRandomBytes) {
  const StoreServer server({.credentials = kJob, .max_unauthenticated = 16});
  TcpStore bystander(client_of(server.port()));
  std::mt19937_64 random(20240607);
  for (int round = 0; round < 400; ++round) {
    const RawClient client(server.port());
    if (round % 2 == 0) client.authenticate();
    std::string bytes;
    const auto size = random() % 600;
    for (std::uint64_t i = 0; i < size; ++i) bytes.push_back(static_cast<char>(random()));
    if (round % 4 == 0 && size > 20) {
      // A plausible head, so that the fields are reached as well.
      FrameWriter writer(static_cast<std::uint8_t>(1 + random() % 11), random() % 4);
      bytes = std::move(writer.raw(std::string_view(bytes).substr(13))).str();
    }
    if (round % 3 == 0) bytes.insert(0, kStoreMagic);
    client.send(bytes);
  }
  bystander.set("key", "value");
  EXPECT_EQ(bystander.get("key"), "value");
  EXPECT_TRUE(eventually([&] { return server.stats().authenticated == 1; }, 20s));
  EXPECT_LT(server.stats().bytes, 100'000u);
}

TEST(StoreServer, DropsAClientThatDawdlesInTheHandshake) {
  const StoreServer server({.credentials = kJob, .handshake_timeout = 100ms});
  const RawClient silent(server.port());
  const RawClient slow(server.port());
  std::atomic<bool> stop = false;
  std::thread drip([&] {
    // A byte at a time: each one is progress, the deadline stands all the same.
    for (const char byte : ClientHandshake(kJob).hello().substr(0, 60)) {
      if (stop) return;
      slow.send(std::string(1, byte));
      std::this_thread::sleep_for(10ms);
    }
  });
  EXPECT_EQ(silent.read_to_end(), "");
  EXPECT_EQ(slow.read_to_end(), "");
  stop = true;
  drip.join();
  EXPECT_EQ(server.stats().unauthenticated, 0u);
  expect_usable(server.port());
}

TEST(StoreServer, DropsAClientThatStopsInTheMiddleOfAFrame) {
  const StoreServer server({.credentials = kJob, .frame_timeout = 100ms});
  const RawClient idle(server.port());
  idle.authenticate();
  const RawClient stuck(server.port());
  stuck.authenticate();
  stuck.send(std::string("\x00\x00\x00\x04 claims 64 MiB", 18));
  EXPECT_EQ(stuck.read_to_end(), "");
  EXPECT_EQ(server.stats().authenticated, 1u);  // resting between frames is no fault
}

TEST(StoreServer, ServesItsOwnWhileTenThousandStrangersConnect) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const int strangers = limit.rlim_max > 11'000 ? 10'000 : static_cast<int>(limit.rlim_max) - 800;
  const StoreServer server({.credentials = kJob, .handshake_timeout = 60s});
  TcpStore early(client_of(server.port()));
  std::vector<RawClient> crowd;
  for (int i = 0; i < strangers; ++i) {
    crowd.emplace_back(server.port());
    if (i % 1000 == 0) early.set("key", std::to_string(i));
  }
  expect_usable(server.port());
  EXPECT_EQ(early.get("check"), "ok");
  EXPECT_LE(server.stats().unauthenticated, 256u);
}

TEST(StoreServer, RefusesMoreClientsThanItTakes) {
  const StoreServer server({.credentials = kJob, .max_connections = 2});
  TcpStore first(client_of(server.port()));
  auto second = std::make_unique<TcpStore>(client_of(server.port()));
  EXPECT_THAT([&] { TcpStore{client_of(server.port())}; },
              ThrowsMessage<StoreError>(HasSubstr("as many connections")));
  second.reset();
  EXPECT_TRUE(eventually([&] { return server.stats().authenticated == 1; }, 20s));
  expect_usable(server.port());
}

TEST(StoreServer, AFullTableIsAnErrorAndErasingMakesRoom) {
  const StoreServer server({.credentials = kJob, .max_bytes = 1000});
  TcpStore store(client_of(server.port()));
  store.set("a", std::string(900, 'a'));
  EXPECT_THAT([&] { store.set("b", std::string(900, 'b')); },
              ThrowsMessage<StoreError>(HasSubstr("full")));
  store.set("a", std::string(950, 'c'));  // replacing counts the difference
  EXPECT_TRUE(store.erase("a"));
  store.set("b", std::string(900, 'b'));
  EXPECT_EQ(server.stats().bytes, 901u);
}

TEST(StoreServer, WaitingCallsAreForgottenWhenTheyTimeOutOrTheirClientGoes) {
  const StoreServer server({.credentials = kJob});
  auto store = std::make_unique<TcpStore>(client_of(server.port()));
  EXPECT_THROW(store->get("never", 20ms), TimeoutError);
  EXPECT_THROW(store->wait({"never", "ever"}, 20ms), TimeoutError);
  store->set("flush", "");
  EXPECT_EQ(server.stats().parked, 0u);
  const RawClient client(server.port());
  client.authenticate();
  client.send(frame(StoreOp::get, [](FrameWriter& f) { f.string("never"); }));
  EXPECT_TRUE(eventually([&] { return server.stats().parked == 1; }, 20s));
  ::shutdown(client.fd(), SHUT_RDWR);
  EXPECT_TRUE(eventually([&] { return server.stats().parked == 0; }, 20s));
}

// Runs `body` in a forked process; SIGKILL and reaping at the end of scope.
class Forked {
 public:
  explicit Forked(const std::function<void(int pipe)>& body) {
    int ends[2];
    if (::pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
    pid_ = ::fork();
    if (pid_ == 0) {
      body(ends[1]);
      ::_exit(0);
    }
    ::close(ends[1]);
    pipe_ = UniqueFd(ends[0]);
  }
  ~Forked() { kill(); }
  void signal(int number) const { ::kill(pid_, number); }
  // Returns once the process has really stopped.
  void stop() const {
    signal(SIGSTOP);
    ::waitpid(pid_, nullptr, WUNTRACED);
  }
  void kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  std::uint16_t port() const {
    std::uint16_t port = 0;
    EXPECT_EQ(::read(pipe_.get(), &port, sizeof port), static_cast<ssize_t>(sizeof port));
    return port;
  }

 private:
  pid_t pid_;
  UniqueFd pipe_;
};

void host_for_ever(int pipe) {
  const StoreServer server({.credentials = kJob});
  const std::uint16_t port = server.port();
  if (::write(pipe, &port, sizeof port) == sizeof port) ::pause();
}

TEST(StoreFaults, TheServersDeathFailsEveryPendingAndLaterCallAtOnce) {
  Forked host(host_for_ever);
  TcpStore store(client_of(host.port()));
  std::vector<std::future<std::string>> pending;
  for (int i = 0; i < 4; ++i) {
    pending.push_back(std::async(std::launch::async, [&] { return store.get("never", 60s); }));
  }
  store.set("key", "value");
  const auto killed = Clock::now();
  host.kill();
  for (auto& call : pending) {
    EXPECT_THAT([&] { call.get(); }, ThrowsMessage<StoreError>(HasSubstr("gone")));
  }
  EXPECT_THROW(store.set("key", "value", 60s), StoreError);
  EXPECT_THROW(store.goodbye(60s), StoreError);
  EXPECT_LT(Clock::now() - killed, 10s);
}

TEST(StoreFaults, AStoppedServerMakesCallsMissTheirDeadlineAndNoMore) {
  const Forked host(host_for_ever);
  TcpStore store(client_of(host.port()));
  store.set("key", "value");
  host.stop();
  EXPECT_THROW(store.get("key", 50ms), TimeoutError);
  EXPECT_THROW(store.set("large", std::string(kMaxStoreValue, 'x'), 50ms), TimeoutError);
  EXPECT_THROW(store.get("key", 50ms), TimeoutError);
  host.signal(SIGCONT);
  // The half-sent request is completed before the next one.
  EXPECT_EQ(store.get("key"), "value");
  EXPECT_EQ(store.get("large").size(), kMaxStoreValue);
}

TEST(StoreFaults, AKilledClientsLastWillTellsItsPeers) {
  const StoreServer* server = nullptr;
  int ends[2];
  ASSERT_EQ(::pipe2(ends, O_CLOEXEC), 0);
  // Forked before this process has threads; it learns the port through a pipe.
  Forked rank([&](int pipe) {
    std::uint16_t port = 0;
    if (::read(ends[0], &port, sizeof port) != sizeof port) return;
    TcpStore store(client_of(port));
    store.set_on_disconnect("dead/1", "rank 1");
    if (::write(pipe, &port, sizeof port) == sizeof port) ::pause();
  });
  const StoreServer own({.credentials = kJob});
  server = &own;
  const std::uint16_t port = server->port();
  ASSERT_EQ(::write(ends[1], &port, sizeof port), static_cast<ssize_t>(sizeof port));
  EXPECT_EQ(rank.port(), port);
  TcpStore survivor(client_of(port));
  EXPECT_EQ(survivor.try_get("dead/1"), std::nullopt);
  rank.kill();
  EXPECT_EQ(survivor.get("dead/1", 20s), "rank 1");
  ::close(ends[0]);
  ::close(ends[1]);
}

TEST(StoreFaults, AWriterIsNotBlockedByRepliesThatNobodyReads) {
  const StoreServer server({.credentials = kJob});
  TcpStore store(client_of(server.port()));
  const std::string large(std::size_t{16} << 20, 'x');  // more than the sockets' buffers hold
  store.set("large", large);
  // Calls that have timed out leave their replies, 16 MiB each, in the way of the next request.
  int replies_left = 0;
  for (int i = 0; i < 6; ++i) {
    try {
      store.get("large", 1ms);
    } catch (const TimeoutError&) {
      ++replies_left;
    }
  }
  EXPECT_GT(replies_left, 0);
  store.set("large", large, 60s);
  EXPECT_EQ(store.add("n", 1), 1);
}

}  // namespace
}  // namespace cohort::comm
