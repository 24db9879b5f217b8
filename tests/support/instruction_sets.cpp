#include "support/instruction_sets.h"

#include "backend/cpu/simd.h"
//
#include "hwy/highway.h"

namespace cohort::test {

void OnEveryInstructionSet::SetUp() {
  hwy::SetSupportedTargetsForTest(GetParam());
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

void OnEveryInstructionSet::TearDown() {
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

std::vector<std::int64_t> instruction_sets() {
  std::vector<std::int64_t> sets;
  const std::int64_t supported = hwy::SupportedTargets() | HWY_STATIC_TARGET;
  for (int bit = 0; bit < 63; ++bit) {
    const std::int64_t set = std::int64_t{1} << bit;
    if ((HWY_TARGETS & supported & set) != 0) sets.push_back(set);
  }
  return sets;
}

std::string instruction_set_name(const testing::TestParamInfo<std::int64_t>& info) {
  return hwy::TargetName(info.param);
}

}  // namespace cohort::test
