#include "cohort/comm/rendezvous.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>

#include "cohort/core/error.h"

namespace cohort::comm {
namespace {

// What one process says of itself.
std::string introduction(int world_size) {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  return str("process ", ::getpid(), " on ", host.data(), ", world size ", world_size);
}

std::string list(const std::vector<int>& ranks) {
  // Enough to see the pattern; a thousand missing ranks need no thousand numbers.
  constexpr std::size_t kShown = 16;
  std::string text;
  for (std::size_t i = 0; i < std::min(ranks.size(), kShown); ++i) {
    text += str(i == 0 ? "" : ", ", ranks[i]);
  }
  if (ranks.size() > kShown) text += str(" and ", ranks.size() - kShown, " more");
  return ranks.empty() ? "none" : text;
}

TimeoutError missing_ranks(Store& store, int world_size, Milliseconds timeout) {
  std::vector<int> there;
  std::vector<int> missing;
  // The deadline has passed already; the report gets a moment of its own.
  const Deadline deadline = Deadline::after(Milliseconds(2'000));
  for (int rank = 0; rank < world_size; ++rank) {
    (store.try_get(str("rank/", rank), deadline.left()) ? there : missing).push_back(rank);
  }
  return TimeoutError(str("[join] only ", there.size(), " of ", world_size, " ranks joined within ",
                          timeout.count(), " ms: ", list(there), "; missing: ", list(missing),
                          ". Were all nodes started?"));
}

}  // namespace

std::shared_ptr<Store> open_store(const LaunchEnv& env, Milliseconds timeout) {
  if (env.world_size == 1) return std::make_shared<MemoryStore>();
  return std::make_shared<TcpStore>(TcpStoreOptions{
      .host = env.master_addr,
      .port = env.master_port,
      .credentials = {env.job_id, env.secret},
      .connect_timeout = timeout,
      .host_server = env.rank == 0 && !env.store_hosted,
      .bind_address = env.bind_addr,
  });
}

void join(Store& parent, const std::string& name, int rank, int world_size, Milliseconds timeout) {
  check(world_size >= 1, "[join] the world size is ", world_size);
  check(rank >= 0 && rank < world_size, "[join] rank ", rank, " is outside a world of ",
        world_size);
  const Deadline deadline = Deadline::after(timeout);
  // Aliases the caller's store without owning it.
  PrefixStore store("join/" + name, std::shared_ptr<Store>(std::shared_ptr<Store>(), &parent));

  // The first outcome stands: that of the last rank to join, or of the first to see a
  // contradiction.
  const std::string self = introduction(world_size);
  const std::string mine = str("rank/", rank);
  std::string contradiction;
  if (!store.compare_and_set(mine, std::nullopt, self, deadline.left())) {
    contradiction = str("rank ", rank, " was claimed twice: by ", store.get(mine, deadline.left()),
                        " and by ", self);
  } else if (!store.compare_and_set("world_size", std::nullopt, std::to_string(world_size),
                                    deadline.left())) {
    const std::string first = store.get("world_size", deadline.left());
    if (first != std::to_string(world_size)) {
      contradiction = str("the ranks do not agree on the world size: the first said ", first,
                          ", rank ", rank, " says ", world_size);
    }
  }
  if (!contradiction.empty()) {
    store.compare_and_set("outcome", std::nullopt, contradiction, deadline.left());
    throw MismatchError(str("[join] ", contradiction));
  }
  if (store.add("count", 1, deadline.left()) == world_size) {
    store.compare_and_set("outcome", std::nullopt, "", deadline.left());
  }
  std::string outcome;
  try {
    outcome = store.get("outcome", deadline.left());
  } catch (const TimeoutError&) {
    throw missing_ranks(store, world_size, timeout);
  }
  if (!outcome.empty()) throw MismatchError(str("[join] ", outcome));
}

}  // namespace cohort::comm
