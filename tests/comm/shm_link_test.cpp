// How ranks that are processes find each other and pass segments on; here they are threads of one
// process, each with its own mappings.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/mman.h>
#include <unistd.h>

#include <functional>
#include <map>
#include <thread>

#include "cohort/comm/store.h"
#include "cohort/core/error.h"
#include "comm/collective_values.h"
#include "comm/shm/mapping.h"
#include "comm/shm/memory_left.h"
#include "comm/shm/process_link.h"
#include "comm/shm/shm_transport.h"
#include "comm/shm/socket.h"

namespace cohort::test {
namespace {

namespace shm = comm::shm;
using shm::Descriptor;
using shm::Mapping;
using testing::AllOf;
using testing::HasSubstr;

constexpr Milliseconds kTimeout{20'000};

// Another client of a store, for which some keys have other values.
class ForgedStore final : public comm::Store {
 public:
  ForgedStore(std::shared_ptr<comm::Store> store, std::map<std::string, std::string> forged)
      : Store(kTimeout), store_(std::move(store)), forged_(std::move(forged)) {}

 private:
  void do_set(const std::string& key, std::string value, Deadline) override {
    store_->set(key, value);
  }
  std::string do_get(const std::string& key, Deadline) override {
    const auto found = forged_.find(key);
    return found != forged_.end() ? found->second : store_->get(key);
  }
  std::optional<std::string> do_try_get(const std::string& key, Deadline) override {
    return store_->try_get(key);
  }
  std::int64_t do_add(const std::string& key, std::int64_t delta, Deadline) override {
    return store_->add(key, delta);
  }
  bool do_compare_and_set(const std::string& key, const std::optional<std::string>& expected,
                          std::string desired, Deadline) override {
    return store_->compare_and_set(key, expected, desired);
  }
  bool do_erase(const std::string& key, Deadline) override { return store_->erase(key); }
  void do_wait(const std::vector<std::string>& keys, Deadline) override { store_->wait(keys); }
  void do_set_on_disconnect(const std::string& key, std::string value, Deadline) override {
    store_->set_on_disconnect(key, value);
  }
  void do_goodbye(Deadline) override { store_->goodbye(); }

  std::shared_ptr<comm::Store> store_;
  std::map<std::string, std::string> forged_;
};

void on_threads(int count, const std::function<void(int)>& fn) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(fn, i);
  for (std::thread& thread : threads) thread.join();
}

const shm::Link::Poll kNoPoll = [] {};

TEST(ProcessLink, HandsSegmentsFromRankZeroToAllOthers) {
  const comm::MemoryStore store(kTimeout);
  on_threads(3, [&](int rank) {
    const auto client = store.connect();
    const auto link = shm::connect_processes(*client, rank, 3, kTimeout);
    std::shared_ptr<Mapping> segment;
    if (rank == 0) {
      segment = Mapping::create(8'192);
      segment->reserve(0, 8'192);
      segment->data()[8'191] = std::byte{42};
      link->offer(7, segment, {}, kNoPoll);
    } else {
      segment = link->receive(7, 8'192, kNoPoll);
    }
    EXPECT_EQ(segment->data()[8'191], std::byte{42});
  });
}

TEST(ProcessLink, PassesOnThatThereIsNoSegment) {
  const comm::MemoryStore store(kTimeout);
  on_threads(2, [&](int rank) {
    const auto client = store.connect();
    const auto link = shm::connect_processes(*client, rank, 2, kTimeout);
    if (rank == 0) {
      link->offer(1, nullptr, "no memory for it", kNoPoll);
    } else {
      EXPECT_EQ(message_of<OutOfMemory>([&] { link->receive(1, 4'096, kNoPoll); }),
                "no memory for it");
    }
  });
}

TEST(ProcessLink, RefusesASegmentOfAnotherSizeOrOccasion) {
  const comm::MemoryStore store(kTimeout);
  on_threads(2, [&](int rank) {
    const auto client = store.connect();
    const auto link = shm::connect_processes(*client, rank, 2, kTimeout);
    if (rank == 0) {
      link->offer(1, Mapping::create(4'096), {}, kNoPoll);
      link->offer(2, Mapping::create(4'096), {}, kNoPoll);
    } else {
      EXPECT_THAT(message_of<Error>([&] { link->receive(1, 8'192, kNoPoll); }),
                  HasSubstr("4096 bytes where 8192"));
      EXPECT_THROW(link->receive(3, 4'096, kNoPoll), MismatchError);
    }
  });
}

TEST(ProcessLink, SeesThatAPeerHasGone) {
  const comm::MemoryStore store(kTimeout);
  std::shared_ptr<shm::Link> links[2];
  on_threads(2, [&](int rank) {
    const auto client = store.connect();
    links[rank] = shm::connect_processes(*client, rank, 2, kTimeout);
  });
  EXPECT_FALSE(links[0]->gone(1));
  EXPECT_FALSE(links[0]->gone(0));
  links[1].reset();
  EXPECT_TRUE(links[0]->gone(1));
}

// A client for which the sockets of some ranks are ones that do not exist here.
std::unique_ptr<ForgedStore> cut_off_from(const std::shared_ptr<comm::MemoryStore>& store,
                                          const std::vector<int>& ranks) {
  std::map<std::string, std::string> forged;
  for (const int rank : ranks) {
    forged["shm/address/" + std::to_string(rank)] = "cohort-nowhere " + std::string(32, '0');
  }
  return std::make_unique<ForgedStore>(store->connect(), std::move(forged));
}

TEST(ProcessLink, TellsAllRanksWhoDoesNotShareTheHost) {
  const auto store = std::make_shared<comm::MemoryStore>(kTimeout);
  on_threads(3, [&](int rank) {
    const auto client =
        cut_off_from(store, rank == 2 ? std::vector<int>{0, 1} : std::vector<int>{});
    EXPECT_THAT(
        message_of<NotSupported>([&] { shm::connect_processes(*client, rank, 3, kTimeout); }),
        HasSubstr("rank 2 does not share a host with rank 0"));
  });
}

TEST(ProcessLink, RefusesHostsThatDoNotComeApart) {
  const auto store = std::make_shared<comm::MemoryStore>(kTimeout);
  on_threads(3, [&](int rank) {
    const auto client = cut_off_from(store, rank == 2 ? std::vector<int>{1} : std::vector<int>{});
    EXPECT_THAT(message_of<NotSupported>([&] { shm::find_hosts(*client, rank, 3, kTimeout); }),
                HasSubstr("rank 2 cannot reach rank 1"));
  });
}

TEST(ProcessLink, FindsTheRanksOfEachHost) {
  // Ranks 0 and 2 on one host, 1 and 4 on another, 3 alone.
  const std::vector<int> host_of = {0, 1, 0, 3, 1};
  const auto store = std::make_shared<comm::MemoryStore>(kTimeout);
  on_threads(5, [&](int rank) {
    std::vector<int> elsewhere;
    for (int r = 0; r < rank; ++r) {
      if (host_of[static_cast<std::size_t>(r)] != host_of[static_cast<std::size_t>(rank)])
        elsewhere.push_back(r);
    }
    const auto client = cut_off_from(store, elsewhere);
    const shm::Hosts hosts = shm::find_hosts(*client, rank, 5, kTimeout);
    EXPECT_EQ(hosts.host_of, host_of);
    EXPECT_FALSE(hosts.one());
    EXPECT_EQ(hosts.link == nullptr, rank == 3);
    if (rank == 0 || rank == 1) hosts.link->offer(9, nullptr, str("from ", rank), kNoPoll);
    if (rank == 2 || rank == 4) {
      EXPECT_EQ(message_of<OutOfMemory>([&] { hosts.link->receive(9, 4'096, kNoPoll); }),
                rank == 2 ? "from 0" : "from 1");
    }
  });
}

TEST(ProcessLink, DropsStrangersWhoDoNotKnowTheNonce) {
  const auto store = std::make_shared<comm::MemoryStore>(kTimeout);
  std::thread stranger([&] {
    const std::string address = store->connect()->get("shm/address/0");
    const auto socket = shm::connect_abstract(address.substr(0, address.find(' ')));
    ASSERT_TRUE(socket.has_value());
    const std::uint8_t garbage[32] = {1, 2, 3};
    shm::send_bytes(*socket, garbage, sizeof(garbage));
    store->connect()->set("stranger", "was here");
  });
  std::shared_ptr<shm::Link> links[2];
  on_threads(2, [&](int rank) {
    const auto client = store->connect();
    if (rank == 1) client->get("stranger");
    links[rank] = shm::connect_processes(*client, rank, 2, kTimeout);
  });
  EXPECT_FALSE(links[0]->gone(1));
  stranger.join();
}

TEST(ProcessLink, NamesTheRankThatDoesNotCome) {
  comm::MemoryStore store(Milliseconds(200));
  EXPECT_THAT(
      message_of<TimeoutError>([&] { shm::connect_processes(store, 0, 2, Milliseconds(200)); }),
      HasSubstr("shm/unreachable/1"));
}

TEST(ProcessLink, CarriesWholeGroupsWithTheirOwnMappings) {
  const comm::MemoryStore store(kTimeout);
  on_threads(3, [&](int rank) {
    const auto runtime = Runtime::make({.rank = rank});
    Context context(runtime);
    const ContextScope scope(context);
    const auto client = store.connect();
    const auto group = comm::make_process_group(
        shm::make_shm_transport(shm::connect_processes(*client, rank, 3, kTimeout), rank, 3,
                                "world", kTimeout),
        "world", kTimeout);
    const auto pair = group->split(rank == 1 ? -1 : 0);
    for (const auto& each : {group, pair}) {
      if (!each) continue;
      const Tensor tensor = each->allocate({50'000});
      tensor.detach().fill_(1);
      each->all_reduce(tensor).wait();
      EXPECT_EQ(tensor.data<float>()[49'999], static_cast<float>(each->size()));
    }
    group->barrier().wait();
  });
}

TEST(Mapping, RefusesAForeignFileOfTheWrongSizeOrWithoutSeals) {
  const auto make = [](off_t bytes) {
    Descriptor file(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    EXPECT_EQ(ftruncate(file.get(), bytes), 0);
    return file;
  };
  EXPECT_THAT(message_of<Error>([&] { Mapping::adopt(make(4'096), 8'192); }),
              HasSubstr("segment of 4096 bytes where 8192"));
  EXPECT_THAT(message_of<Error>([&] { Mapping::adopt(make(8'192), 8'192); }),
              HasSubstr("not sealed"));
}

TEST(Mapping, CannotBeCutByAPeer) {
  const auto segment = Mapping::create(8'192);
  EXPECT_NE(ftruncate(segment->file(), 0), 0);
}

TEST(Mapping, IsAnErrorWhenTheMachineHasNoRoom) {
  const std::size_t left = shm::memory_left();
  EXPECT_GT(left, 0u);
  EXPECT_THAT(message_of<OutOfMemory>([&] { Mapping::create(left * 4); }),
              AllOf(HasSubstr("do not fit"), HasSubstr("machine or container")));
}

}  // namespace
}  // namespace cohort::test
