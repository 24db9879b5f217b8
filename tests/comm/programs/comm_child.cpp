// A rank of the process tests: comm_child MODE [group timeout in milliseconds] [backend].

#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <fstream>
#include <functional>
#include <map>
#include <string>

#include "cohort/comm/init.h"
#include "cohort/core/context.h"
#include "cohort/core/error.h"
#include "cohort/core/tensor.h"

namespace {

using namespace cohort;
using Group = std::shared_ptr<comm::ProcessGroup>;

constexpr std::int64_t kLarge = 4 << 20;  // elements: 16 MiB

void say(const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
}

Tensor ones(std::int64_t size, DType dtype = f32) {
  return Tensor::ones({size}, {.dtype = dtype});
}

// Calls `step` until somebody ends the process; says when the loop is well under way.
void loop(const std::function<void()>& step) {
  for (int i = 0;; ++i) {
    step();
    if (i == 3) say("running");
  }
}

void all_reduce_loop(const Group& group, const Tensor& tensor) {
  tensor.detach().fill_(1);
  loop([&] { group->all_reduce(tensor, comm::ReduceOp::mean).wait(); });
}

void reduce_scatter_loop(const Group& group) {
  const std::int64_t part = kLarge / group->size();
  const Tensor gradients = ones(part * group->size());
  const Tensor shard = Tensor::empty({part});
  const Tensor gathered[] = {Tensor::empty(gradients.shape()), Tensor::empty(gradients.shape())};
  int next = 0;
  loop([&] {
    const comm::Work reduced = group->reduce_scatter(shard, gradients);
    // The next unit's gather is in flight while this one's gradients are reduced.
    const comm::Work prefetched = group->all_gather(gathered[next ^= 1], shard);
    reduced.wait();
    prefetched.wait();
  });
}

void crossed(const Group& group) {
  const Group a = group->split(0, 0, "a");
  const Group b = group->split(0, 0, "b");
  const Tensor tensor = ones(100);
  (group->rank() == 0 ? a : b)->all_reduce(tensor);
  (group->rank() == 0 ? b : a)->all_reduce(tensor).wait();
}

void throwing_loader(const Group& group) {
  const Tensor tensor = ones(kLarge);
  for (int i = 0;; ++i) {
    if (i == 3 && group->rank() == 1) throw std::runtime_error("the loader of rank 1 is empty");
    group->all_reduce(tensor, comm::ReduceOp::mean).wait();
  }
}

void little_memory(const Group& group) {
  if (group->rank() == 1) {
    // No room to map another 512 MiB: the limit of address space is what a process can set itself.
    // What is mapped already counts (a sanitizer's shadow is terabytes).
    std::int64_t pages = 0;
    std::ifstream("/proc/self/statm") >> pages;
    const auto bytes = static_cast<rlim_t>(pages * sysconf(_SC_PAGESIZE)) + (rlim_t{1} << 29);
    const rlimit limit{.rlim_cur = bytes, .rlim_max = bytes};
    setrlimit(RLIMIT_AS, &limit);
  }
  try {
    group->allocate({std::int64_t{150} << 20});
    say("allocated");
  } catch (const OutOfMemory& error) {
    say(std::string("refused: ") + error.what());
  }
  const Tensor small = group->allocate({1000});
  small.detach().fill_(1);
  group->all_reduce(small).wait();
  say(str("sum ", small.data<float>()[0]));
}

void forks_and_loops(const Group& group) {
  if (fork() == 0) {
    // Holds copies of all sockets for longer than the others may take to notice.
    alarm(7);
    for (;;) pause();
  }
  all_reduce_loop(group, ones(kLarge));
}

int run(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "";
  const Milliseconds timeout(argc > 2 ? std::stol(argv[2]) : 60'000);
  const Group group =
      comm::init_from_env({.timeout = timeout, .backend = argc > 3 ? argv[3] : "auto"});
  const bool odd = group->rank() == 1;
  const std::map<std::string, std::function<void()>> modes = {
      {"symmetric", [&] { all_reduce_loop(group, group->allocate({kLarge})); }},
      {"ordinary", [&] { all_reduce_loop(group, ones(kLarge)); }},
      {"reduce_scatter", [&] { reduce_scatter_loop(group); }},
      {"skip",
       [&] {
         if (!odd) group->all_reduce(ones(10)).wait();
         group->all_reduce(ones(20)).wait();
       }},
      {"extra",
       [&] {
         group->all_reduce(ones(10)).wait();
         if (odd) group->all_reduce(ones(20)).wait();
       }},
      {"numel", [&] { group->all_reduce(ones(odd ? 11 : 10)).wait(); }},
      {"dtype", [&] { group->all_reduce(ones(10, odd ? f64 : f32)).wait(); }},
      {"crossed", [&] { crossed(group); }},
      {"order",
       [&] {
         group->all_reduce(ones(odd ? 20 : 10)).wait();
         group->all_reduce(ones(odd ? 10 : 20)).wait();
       }},
      {"die",
       [&] {
         group->all_reduce(ones(10)).wait();
         if (odd) raise(SIGKILL);
         group->all_reduce(ones(20)).wait();
       }},
      {"throw", [&] { throwing_loader(group); }},
      {"memory", [&] { little_memory(group); }},
      {"leave",
       [&] {
         if (!odd) group->barrier().wait();
       }},
      {"fork", [&] { forks_and_loops(group); }},
      {"wait",
       [&] {
         say("running");
         if (odd) pause();
         group->barrier().wait();
       }},
      {"once",
       [&] {
         const Tensor tensor = group->allocate({1000});
         tensor.detach().fill_(group->rank() + 1);
         group->all_reduce(tensor).wait();
         say(str("rank ", group->rank(), " of ", group->size(), " backend ", group->backend(),
                 " sum ", tensor.data<float>()[999], " subsequence ",
                 Context::current().generator.state().subsequence));
       }},
  };
  const auto found = modes.find(mode);
  check(found != modes.end(), "[comm_child] no mode '", mode, "'");
  found->second();
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return cohort::comm::run_main(argc, argv, run);
}
