#include "cohort/comm/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <thread>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;
using testing::HasSubstr;
using testing::ThrowsMessage;

// A job with any number of clients, over each kind of store.
class Job {
 public:
  virtual ~Job() = default;
  virtual std::shared_ptr<Store> client() = 0;
};

class MemoryJob final : public Job {
 public:
  std::shared_ptr<Store> client() override { return root_.connect(); }

 private:
  MemoryStore root_{60s};
};

class TcpJob final : public Job {
 public:
  std::shared_ptr<Store> client() override {
    return std::make_shared<TcpStore>(
        TcpStoreOptions{.port = server_.port(), .credentials = {"job", "secret"}, .timeout = 60s});
  }

 private:
  StoreServer server_{{.credentials = {"job", "secret"}}};
};

template <typename Inner>
class PrefixedJob final : public Job {
 public:
  std::shared_ptr<Store> client() override {
    return std::make_shared<PrefixStore>("group", inner_.client());
  }

 private:
  Inner inner_;
};

struct Kind {
  const char* name;
  std::function<std::unique_ptr<Job>()> make;
};

class AnyStore : public testing::TestWithParam<Kind> {
 protected:
  std::shared_ptr<Store> client() { return job_->client(); }
  std::unique_ptr<Job> job_ = GetParam().make();
};

INSTANTIATE_TEST_SUITE_P(
    Kinds, AnyStore,
    testing::Values(Kind{"Memory", [] { return std::make_unique<MemoryJob>(); }},
                    Kind{"Tcp", [] { return std::make_unique<TcpJob>(); }},
                    Kind{"PrefixedMemory",
                         [] { return std::make_unique<PrefixedJob<MemoryJob>>(); }},
                    Kind{"PrefixedTcp", [] { return std::make_unique<PrefixedJob<TcpJob>>(); }}),
    [](const auto& info) { return info.param.name; });

TEST_P(AnyStore, AnotherClientReadsWhatOneSet) {
  const auto a = client();
  const auto b = client();
  a->set("key", "first");
  EXPECT_EQ(b->get("key"), "first");
  a->set("key", "second");
  EXPECT_EQ(b->get("key"), "second");
}

TEST_P(AnyStore, KeysAndValuesAreAnyBytes) {
  const auto store = client();
  std::string bytes;
  for (int i = 0; i < 1024; ++i) bytes.push_back(static_cast<char>(i));
  const std::string key("a\0b\n\xff", 5);
  store->set(key, bytes);
  EXPECT_EQ(store->get(key), bytes);
  EXPECT_EQ(store->try_get("a"), std::nullopt);
  store->set("empty", "");
  EXPECT_EQ(store->get("empty"), "");
  EXPECT_EQ(store->try_get("empty"), "");
}

TEST_P(AnyStore, ValuesOfManyMegabytesPass) {
  const auto store = client();
  std::string large(kMaxStoreValue, 'x');
  large[12345678] = 'y';
  store->set("large", large);
  EXPECT_TRUE(store->get("large") == large);
}

TEST_P(AnyStore, GetWaitsUntilTheKeyIsSet) {
  const auto reader = client();
  const auto writer = client();
  auto value = std::async(std::launch::async, [&] { return reader->get("late"); });
  EXPECT_EQ(value.wait_for(50ms), std::future_status::timeout);
  writer->set("late", "there");
  EXPECT_EQ(value.get(), "there");
}

TEST_P(AnyStore, ThreadsShareOneClientWhileSomeOfThemWait) {
  const auto shared = client();
  std::vector<std::future<std::string>> values;
  for (int i = 0; i < 8; ++i) {
    values.push_back(std::async(std::launch::async,
                                [&shared, i] { return shared->get("key" + std::to_string(i)); }));
  }
  for (int i = 7; i >= 0; --i) shared->set("key" + std::to_string(i), std::to_string(i));
  for (int i = 0; i < 8; ++i)
    EXPECT_EQ(values[static_cast<std::size_t>(i)].get(), std::to_string(i));
}

TEST_P(AnyStore, GetNamesTheKeyWhenTheDeadlinePasses) {
  const auto store = client();
  EXPECT_THAT([&] { store->get("never", 30ms); }, ThrowsMessage<TimeoutError>(HasSubstr("never")));
  store->set("never", "later");  // the store stays usable
  EXPECT_EQ(store->get("never"), "later");
}

TEST_P(AnyStore, AddsFromManyThreadsAreAllCounted) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([store = client()] {
      for (int j = 0; j < 100; ++j) store->add("count", j % 2 == 0 ? 3 : -1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(client()->add("count", 0), 400);
  EXPECT_EQ(client()->get("count"), "400");
}

TEST_P(AnyStore, AddRefusesWhatIsNoNumberAndWhatOverflows) {
  const auto store = client();
  store->set("text", "12 apples");
  EXPECT_THROW(store->add("text", 1), InvalidArgument);
  EXPECT_EQ(store->get("text"), "12 apples");
  EXPECT_EQ(store->add("big", INT64_MAX), INT64_MAX);
  EXPECT_THROW(store->add("big", 1), InvalidArgument);
  EXPECT_EQ(store->add("big", -1), INT64_MAX - 1);
}

TEST_P(AnyStore, CompareAndSetIsWonByOne) {
  std::atomic<int> winners = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&winners, i, store = client()] {
      winners += store->compare_and_set("leader", std::nullopt, std::to_string(i)) ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(winners, 1);
}

TEST_P(AnyStore, CompareAndSetComparesWithWhatIsThere) {
  const auto store = client();
  EXPECT_FALSE(store->compare_and_set("key", "", "x"));
  EXPECT_EQ(store->try_get("key"), std::nullopt);
  EXPECT_TRUE(store->compare_and_set("key", std::nullopt, ""));
  EXPECT_FALSE(store->compare_and_set("key", std::nullopt, "x"));
  EXPECT_TRUE(store->compare_and_set("key", "", "x"));
  EXPECT_EQ(store->get("key"), "x");
}

TEST_P(AnyStore, EraseTellsWhetherTheKeyWasThere) {
  const auto store = client();
  store->set("key", "value");
  EXPECT_TRUE(store->erase("key"));
  EXPECT_FALSE(store->erase("key"));
  EXPECT_EQ(store->try_get("key"), std::nullopt);
}

TEST_P(AnyStore, WaitReturnsWhenAllKeysAreSetAtOnce) {
  const auto store = client();
  const auto other = client();
  store->wait({});
  store->set("a", "");
  auto waiting = std::async(std::launch::async, [&] { other->wait({"a", "b", "c"}); });
  store->set("b", "");
  store->erase("a");
  store->set("c", "");
  EXPECT_EQ(waiting.wait_for(50ms), std::future_status::timeout);
  store->set("a", "");
  waiting.get();
}

TEST_P(AnyStore, ADisconnectionSetsTheLastWills) {
  const auto survivor = client();
  auto dying = client();
  dying->set_on_disconnect("rank1", "draft");
  dying->set_on_disconnect("rank1", "gone");
  dying->set_on_disconnect("rank1/more", "too");
  auto watch = std::async(std::launch::async, [&] { return survivor->get("rank1"); });
  EXPECT_EQ(watch.wait_for(50ms), std::future_status::timeout);
  dying.reset();
  EXPECT_EQ(watch.get(), "gone");
  EXPECT_EQ(survivor->get("rank1/more"), "too");
}

TEST_P(AnyStore, AGoodbyeVoidsTheLastWills) {
  const auto survivor = client();
  auto leaving = client();
  auto dying = client();
  leaving->set_on_disconnect("leaving", "gone");
  leaving->goodbye();
  leaving.reset();
  dying->set_on_disconnect("dying", "gone");
  dying.reset();  // the second of two disconnections: once it is seen, the first is too
  EXPECT_EQ(survivor->get("dying"), "gone");
  EXPECT_EQ(survivor->try_get("leaving"), std::nullopt);
}

TEST_P(AnyStore, KeysAndValuesOutsideTheLimitsAreRefused) {
  const auto store = client();
  const std::string long_key(kMaxStoreKey + 1, 'k');
  const std::string long_value(kMaxStoreValue + 1, 'v');
  EXPECT_THROW(store->set("", "value"), InvalidArgument);
  EXPECT_THROW(store->get(long_key), InvalidArgument);
  EXPECT_THROW(store->wait({"fine", long_key}), InvalidArgument);
  EXPECT_THROW(store->wait(std::vector<std::string>(kMaxStoreWaitKeys + 1, "k")), InvalidArgument);
  EXPECT_THAT([&] { store->set("big", long_value); },
              ThrowsMessage<InvalidArgument>(HasSubstr("'big'")));
  EXPECT_THROW(store->compare_and_set("big", "x", long_value.substr(1)), InvalidArgument);
  store->set("big", "still usable");
  EXPECT_EQ(store->get("big"), "still usable");
}

TEST(PrefixStore, TwoPrefixesDoNotSeeEachOther) {
  const auto inner = std::make_shared<MemoryStore>();
  PrefixStore a("a", inner);
  PrefixStore b("b", inner);
  a.set("key", "of a");
  EXPECT_EQ(b.try_get("key"), std::nullopt);
  EXPECT_EQ(inner->get("a/key"), "of a");
  EXPECT_THROW(PrefixStore("a", nullptr), InvalidArgument);
}

}  // namespace
}  // namespace cohort::comm
