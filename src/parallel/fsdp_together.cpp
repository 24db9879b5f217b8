#include "parallel/fsdp_together.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cohort/core/error.h"

namespace cohort::parallel {

bool rank0_alone_brings(comm::ProcessGroup& group, bool something, const std::string& what) {
  if (group.size() == 1) return false;
  const Tensor all = Tensor::empty({group.size()}, {.dtype = u8});
  const Tensor own = Tensor::from<std::uint8_t>({static_cast<std::uint8_t>(something)}, {1});
  group.all_gather(all, own, {.owner = what}).synchronize();
  const std::vector<std::uint8_t> brings = all.to_vector<std::uint8_t>();
  return brings.front() != 0 &&
         std::none_of(brings.begin() + 1, brings.end(), [](auto any) { return any != 0; });
}

std::string call_text(const std::string& what, bool rank0_only) {
  return str(what, ", rank0_only ", rank0_only);
}

}  // namespace cohort::parallel
