#include "cohort/core/logging.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace cohort {
namespace {

// What a fresh process with this COHORT_LOG writes; the logger is made once per process.
[[noreturn]] void log_with(const char* level) {
  ::setenv("COHORT_LOG", level, 1);
  logging::debug("a detail");
  logging::warn("a warning");
  std::exit(logging::enabled(logging::Level::debug) ? 1 : 0);
}

class Logging : public testing::Test {
 protected:
  Logging() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(Logging, TakesItsLevelFromTheEnvironment) {
  EXPECT_EXIT(log_with("debug"), testing::ExitedWithCode(1), "a detail(.|\n)*a warning");
  EXPECT_EXIT(log_with("off"), testing::ExitedWithCode(0), "^$");
}

TEST_F(Logging, SaysWhichLevelsThereAreWhenTheWordIsUnknown) {
  EXPECT_EXIT(log_with("loud"), testing::ExitedWithCode(0),
              "COHORT_LOG is 'loud'.*trace, debug, info, warn, error, off(.|\n)*a warning");
}

}  // namespace
}  // namespace cohort
