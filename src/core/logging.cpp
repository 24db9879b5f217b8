#include "cohort/core/logging.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <cstdlib>
#include <memory>
#include <string_view>

namespace cohort::logging {
namespace {

constexpr const char* kLevels = "trace, debug, info, warn, error, off";

spdlog::level::level_enum to_spdlog(Level level) {
  switch (level) {
    case Level::trace:
      return spdlog::level::trace;
    case Level::debug:
      return spdlog::level::debug;
    case Level::info:
      return spdlog::level::info;
    case Level::warn:
      return spdlog::level::warn;
    case Level::error:
      return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The one process-wide logger: immutable after its thread-safe construction, and never destroyed,
// because threads of a rank that fails may still report while the process exits.
spdlog::logger& logger() {
  static spdlog::logger* const instance = [] {
    auto* const made =
        new spdlog::logger("cohort", std::make_shared<spdlog::sinks::stderr_sink_mt>());
    const char* rank = std::getenv("RANK");
    made->set_pattern(rank ? std::string("[%H:%M:%S.%e] [cohort] [rank ") + rank + "] [%l] %v"
                           : "[%H:%M:%S.%e] [cohort] [%l] %v");
    made->set_level(spdlog::level::warn);
    if (const char* level = std::getenv("COHORT_LOG")) {
      // An unknown word is `off` to spdlog.
      const spdlog::level::level_enum known = spdlog::level::from_str(level);
      if (known != spdlog::level::off || std::string_view(level) == "off") {
        made->set_level(known);
      } else {
        made->warn("COHORT_LOG is '{}', which is no level; it stays at warn. Levels: {}", level,
                   kLevels);
      }
    }
    return made;
  }();
  return *instance;
}

}  // namespace

void write(Level level, const std::string& message) {
  logger().log(to_spdlog(level), "{}", message);
}

bool enabled(Level level) {
  return logger().should_log(to_spdlog(level));
}

}  // namespace cohort::logging
