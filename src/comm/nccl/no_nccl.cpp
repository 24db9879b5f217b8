// Stands in for nccl_transport.cpp where the build has no NCCL.

#include "cohort/core/error.h"
#include "comm/nccl/nccl_transport.h"

namespace cohort::comm::nccl {

void check_nccl_is_built() {
  throw NotSupported(
      "[init] cohort was built without NCCL: the CUDA toolkit, nccl.h or libnccl was not found, or "
      "COHORT_CUDA or COHORT_NCCL was OFF; rebuild with -DCOHORT_CUDA=ON -DCOHORT_NCCL=ON to see "
      "what is missing, or choose backend shm");
}

std::unique_ptr<Transport> make_nccl_transport(std::shared_ptr<Store>, Device, int, int,
                                               const std::string&, Milliseconds) {
  check_nccl_is_built();
  return nullptr;
}

}  // namespace cohort::comm::nccl
