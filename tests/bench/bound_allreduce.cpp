// What the machine allows: an all-reduce of f32 between processes that share all buffers and spin
// for each other, without call records, deadlines, error handling or streams.
//
//   g++ -std=c++20 -O3 -march=native bound_allreduce.cpp -o bound_allreduce
//   bound_allreduce RANKS BYTES RUNS
//
// prints the median in milliseconds of rank 0. Give each rank a core: a spinning rank does not let
// another one run.
#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <vector>

namespace {

struct Barrier {
  std::atomic<unsigned> arrived{0};
  std::atomic<unsigned> round{0};

  void wait(unsigned ranks) {
    const unsigned now = round.load();
    if (arrived.fetch_add(1) + 1 == ranks) {
      arrived.store(0);
      round.fetch_add(1);
      return;
    }
    for (int spins = 0; round.load() == now; ++spins) {
      if (spins < 4096) {
        _mm_pause();
      } else {
        sched_yield();
      }
    }
  }
};

// This rank's share of the elements, summed over all buffers and written to all of them. Blocks of
// 64 KiB stay in the first caches between the passes.
void all_reduce(const std::vector<float*>& buffers, std::size_t own, std::size_t begin,
                std::size_t end) {
  constexpr std::size_t kBlock = 16384;
  for (std::size_t at = begin; at < end; at += kBlock) {
    const std::size_t count = std::min(kBlock, end - at);
    float* const sum = buffers[own] + at;
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      if (r == own) continue;
      const float* const other = buffers[r] + at;
      for (std::size_t i = 0; i < count; ++i) sum[i] += other[i];
    }
    for (std::size_t r = 0; r < buffers.size(); ++r) {
      if (r != own) std::copy_n(sum, count, buffers[r] + at);
    }
  }
}

void pin(unsigned rank) {
  const long cores = sysconf(_SC_NPROCESSORS_ONLN);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(rank % static_cast<unsigned>(cores), &set);
  sched_setaffinity(0, sizeof set, &set);
}

int usage() {
  std::fputs("usage: bound_allreduce RANKS BYTES RUNS\n", stderr);
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return usage();
  const auto ranks = static_cast<std::size_t>(std::atoi(argv[1]));
  const auto elements = static_cast<std::size_t>(std::atoll(argv[2])) / sizeof(float);
  const int runs = std::atoi(argv[3]);
  if (ranks < 1 || ranks > 64 || runs < 1) return usage();

  constexpr std::size_t kPage = 4096;
  const std::size_t slice = (elements * sizeof(float) + kPage - 1) / kPage * kPage;
  void* const memory = mmap(nullptr, kPage + ranks * slice, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    std::perror("bound_allreduce: mmap");
    return 1;
  }
  auto* const barrier = new (memory) Barrier;
  std::vector<float*> buffers;
  for (std::size_t r = 0; r < ranks; ++r) {
    buffers.push_back(reinterpret_cast<float*>(static_cast<char*>(memory) + kPage + r * slice));
  }

  std::size_t rank = 0;
  for (std::size_t r = 1; r < ranks && rank == 0; ++r) {
    const pid_t pid = fork();
    if (pid < 0) {
      std::perror("bound_allreduce: fork");
      return 1;
    }
    if (pid == 0) rank = r;
  }
  pin(static_cast<unsigned>(rank));
  std::fill_n(buffers[rank], elements, 0.0f);

  const auto world = static_cast<unsigned>(ranks);
  std::vector<double> ms;
  for (int run = -3; run < runs; ++run) {
    barrier->wait(world);
    const auto start = std::chrono::steady_clock::now();
    barrier->wait(world);  // of the operation: everybody's input is there
    all_reduce(buffers, rank, elements * rank / ranks, elements * (rank + 1) / ranks);
    barrier->wait(world);
    const std::chrono::duration<double, std::milli> taken =
        std::chrono::steady_clock::now() - start;
    if (run >= 0) ms.push_back(taken.count());
  }
  if (rank != 0) return 0;
  while (wait(nullptr) > 0) {
  }
  std::nth_element(ms.begin(), ms.begin() + runs / 2, ms.end());
  std::printf("%.4f\n", ms[static_cast<std::size_t>(runs / 2)]);
  return 0;
}
