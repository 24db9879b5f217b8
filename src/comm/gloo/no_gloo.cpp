// Stands in for this folder where the build has no Gloo.

#include "cohort/core/error.h"
#include "comm/gloo/gloo_transport.h"

namespace cohort::comm::gloo {

void check_gloo_is_built() {
  throw NotSupported(
      "[init] cohort was built without Gloo: its headers or libgloo were not found, or COHORT_GLOO "
      "was OFF; install libgloo-dev and rebuild with -DCOHORT_GLOO=ON to see what is missing. "
      "Without it all ranks must share one host (backend shm)");
}

std::unique_ptr<Transport> make_gloo_transport(Store&, int, int, const std::string&, Milliseconds,
                                               const GlooOptions&) {
  check_gloo_is_built();
  return nullptr;
}

}  // namespace cohort::comm::gloo
