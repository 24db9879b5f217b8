#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

namespace cohort::test {

// Runs a test once for each instruction set that this machine has and the kernels are compiled for.
// The parameter is Highway's number of the set.
class OnEveryInstructionSet : public testing::TestWithParam<std::int64_t> {
 protected:
  void SetUp() override;
  void TearDown() override;
};

// For testing::ValuesIn.
std::vector<std::int64_t> instruction_sets();
std::string instruction_set_name(const testing::TestParamInfo<std::int64_t>& info);

}  // namespace cohort::test
