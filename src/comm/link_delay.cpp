#include "cohort/comm/link_delay.h"

#include "cohort/core/error.h"
#include "comm/link_delay_state.h"

namespace cohort::comm {

void set_link_delay(std::chrono::microseconds delay) {
  check(delay.count() >= 0, "[set_link_delay] a delay of ", delay.count(), " us");
  LinkDelay::of(*Context::current().runtime())->set(delay);
}

}  // namespace cohort::comm
