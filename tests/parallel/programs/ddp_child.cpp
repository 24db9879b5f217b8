// A rank of the process tests of DDP: ddp_child BUCKET_CAP_MB OVERLAP trains and prints the hash of
// its parameters.

#include <cstdlib>
#include <iostream>

#include "cohort/comm/init.h"
#include "cohort/core/error.h"
#include "parallel/training.h"

int main(int argc, char** argv) {
  return cohort::comm::run_main(argc, argv, [](int count, char** args) {
    cohort::check(count == 3, "[ddp_child] needs a bucket cap and an overlap");
    const auto group = cohort::comm::init_from_env();
    const auto parameters = cohort::test::train_rank(group,
                                                     {.bucket_cap_mb = std::atof(args[1]),
                                                      .gradient_as_bucket_view = true,
                                                      .overlap = std::atoi(args[2]) != 0},
                                                     false);
    // One write per line: the ranks share a terminal.
    std::cout << cohort::str("rank ", group->rank(), " hash ", cohort::test::hash_of(parameters),
                             "\n")
              << std::flush;
    return 0;
  });
}
